"""Triggers of an autopilot, their URLs and signing secrets (S8.7, S9.1, S9.13)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from autopilot.bus.subjects import wake_schedule
from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.domain.permissions import Action
from autopilot.engine import triggers as engine
from autopilot.engine.rule_access import find_rule
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import Call, delete, get, patch, post, route
from autopilot.rules_api.paging import Page
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.triggers import (
    SigningSecretPut,
    TriggerCreate,
    TriggerPatch,
    TriggerView,
    show_trigger,
)
from autopilot.storage import collaborators, triggers
from autopilot.storage.database import Conn
from autopilot.storage.triggers import Trigger


async def list_triggers(call: Call, autopilot_id: UUID) -> Page[TriggerView]:
    """All of them, oldest first: there are at most 50."""
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
        found = await triggers.list_triggers(conn, rule.workspace_id, rule.id)
    can_write = rights_of(rule, granted, call.caller).can_write
    return Page(items=[_show(call, trigger, can_write=can_write) for trigger in found], next_cursor=None)


async def add_trigger(call: Call, autopilot_id: UUID, body: TriggerCreate) -> TriggerView:
    caller, new = call.caller, body.as_new(TriggerId(uuid7()))

    async def add(conn: Conn) -> Trigger:
        return await engine.add_trigger(
            conn, call.deps.secrets, caller.workspace_id, AutopilotId(autopilot_id), caller.person, new
        )

    return await _edit(call, add)


async def update_trigger(call: Call, autopilot_id: UUID, trigger_id: UUID, body: TriggerPatch) -> TriggerView:
    caller, expected_rev = call.caller, expected_version(call, body.version)

    async def update(conn: Conn) -> Trigger:
        return await engine.update_trigger(
            conn,
            caller.workspace_id,
            AutopilotId(autopilot_id),
            TriggerId(trigger_id),
            caller.person,
            body.as_edit(),
            expected_rev=expected_rev,
        )

    return await _edit(call, update)


async def delete_trigger(call: Call, autopilot_id: UUID, trigger_id: UUID) -> None:
    """Its URL is dead at once; what it started goes on (S7.15)."""
    caller, expected_rev = call.caller, expected_version(call)

    async def remove(conn: Conn) -> None:
        await engine.delete_trigger(
            conn,
            caller.workspace_id,
            AutopilotId(autopilot_id),
            TriggerId(trigger_id),
            caller.person,
            expected_rev=expected_rev,
        )

    await call.database.transact(remove)


async def rotate_url(call: Call, autopilot_id: UUID, trigger_id: UUID) -> TriggerView:
    """A new URL; the old one is dead at once."""
    caller, expected_rev = call.caller, expected_version(call)

    async def rotate(conn: Conn) -> Trigger:
        return await engine.rotate_url(
            conn,
            call.deps.secrets,
            caller.workspace_id,
            AutopilotId(autopilot_id),
            TriggerId(trigger_id),
            caller.person,
            expected_rev=expected_rev,
        )

    return await _edit(call, rotate)


async def set_signing_secret(
    call: Call, autopilot_id: UUID, trigger_id: UUID, body: SigningSecretPut
) -> TriggerView:
    caller, expected_rev = call.caller, expected_version(call)

    async def set_secret(conn: Conn) -> Trigger:
        return await engine.set_signing_secret(
            conn,
            call.deps.secrets,
            caller.workspace_id,
            AutopilotId(autopilot_id),
            TriggerId(trigger_id),
            caller.person,
            body.secret,
            grace=timedelta(seconds=body.grace_s) if body.grace_s is not None else None,
            expected_rev=expected_rev,
        )

    return await _edit(call, set_secret)


async def clear_signing_secret(call: Call, autopilot_id: UUID, trigger_id: UUID) -> TriggerView:
    """From now on the URL alone is the credential."""
    caller, expected_rev = call.caller, expected_version(call)

    async def clear(conn: Conn) -> Trigger:
        return await engine.clear_signing_secret(
            conn,
            caller.workspace_id,
            AutopilotId(autopilot_id),
            TriggerId(trigger_id),
            caller.person,
            expected_rev=expected_rev,
        )

    return await _edit(call, clear)


async def _edit(call: Call, use_case: Callable[[Conn], Awaitable[Trigger]]) -> TriggerView:
    async def edit(conn: Conn) -> Trigger:
        trigger = await use_case(conn)
        return await triggers.find_trigger(conn, trigger.workspace_id, trigger.id) or trigger

    trigger = await call.database.transact(edit)
    call.deps.bus.wake(wake_schedule)
    return _show(call, trigger, can_write=True)


def _show(call: Call, trigger: Trigger, *, can_write: bool) -> TriggerView:
    return show_trigger(
        trigger,
        call.deps.secrets,
        can_write=can_write,
        ingress_url=call.deps.config.ingress_url,
        now=call.deps.clock.now(),
    )


_TRIGGERS = "/api/autopilots/{autopilot_id}/triggers"
_TRIGGER = _TRIGGERS + "/{trigger_id}"

ROUTES = (
    get(_TRIGGERS, list_triggers),
    post(
        _TRIGGERS,
        add_trigger,
        right=Action.AUTOPILOT_WRITE,
        refusals=(
            Code.INVALID_CRON,
            Code.INVALID_TIMEZONE,
        ),
    ),
    patch(
        _TRIGGER,
        update_trigger,
        right=Action.AUTOPILOT_WRITE,
        refusals=(
            Code.INVALID_CRON,
            Code.INVALID_TIMEZONE,
        ),
    ),
    delete(_TRIGGER, delete_trigger, right=Action.AUTOPILOT_WRITE, versioned=True),
    post(
        _TRIGGER + "/rotate-url",
        rotate_url,
        status=200,
        right=Action.AUTOPILOT_WRITE,
        refusals=(Code.NOT_A_WEBHOOK,),
        versioned=True,
    ),
    route(
        "PUT",
        _TRIGGER + "/signing-secret",
        set_signing_secret,
        status=200,
        right=Action.AUTOPILOT_WRITE,
        refusals=(Code.NOT_A_WEBHOOK,),
        versioned=True,
    ),
    delete(
        _TRIGGER + "/signing-secret",
        clear_signing_secret,
        right=Action.AUTOPILOT_WRITE,
        refusals=(Code.NOT_A_WEBHOOK,),
        versioned=True,
    ),
)
