"""Autopilots: list, make, see, edit, archive (S2.7, S6, S13.2, S13.5, S13.7)."""

from __future__ import annotations

from uuid import UUID

from autopilot.bus.subjects import wake_schedule
from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import Action
from autopilot.engine import rules
from autopilot.engine.rule_access import find_rule
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.autopilots import (
    AutopilotCreate,
    AutopilotDetail,
    AutopilotPatch,
    AutopilotQuery,
    AutopilotView,
    rights_of,
    show_detail,
    show_listed,
)
from autopilot.rules_api.wire.triggers import show_trigger
from autopilot.storage import autopilots, collaborators, triggers
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn


async def list_autopilots(call: Call, query: AutopilotQuery) -> Page[AutopilotView]:
    async with call.database.connection() as conn:
        found = await autopilots.list_autopilots(
            conn,
            call.caller.workspace_id,
            before=query.before,
            status=query.status,
            assignee_id=query.assignee,
            mode=query.mode,
            limit=query.fetch,
        )
        granted = await collaborators.list_collaborators(conn, [autopilot.id for autopilot in found])
    return page_of(
        found,
        query,
        lambda autopilot: autopilot.id,
        lambda autopilot: show_listed(autopilot, granted[autopilot.id], call.caller),
    )


async def create_autopilot(call: Call, body: AutopilotCreate) -> AutopilotDetail:
    new = body.as_new(AutopilotId(uuid7()))

    async def create(conn: Conn) -> AutopilotDetail:
        made = await rules.create_autopilot(conn, call.caller.workspace_id, call.caller.person, new)
        return await _show(conn, call, made)

    return await call.database.transact(create)


async def get_autopilot(call: Call, autopilot_id: UUID) -> AutopilotDetail:
    async with call.database.connection() as conn:
        found = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        return await _show(conn, call, found)


async def update_autopilot(call: Call, autopilot_id: UUID, body: AutopilotPatch) -> AutopilotDetail:
    expected_rev = expected_version(call, body.version)

    async def update(conn: Conn) -> AutopilotDetail:
        saved = await rules.update_autopilot(
            conn,
            call.caller.workspace_id,
            AutopilotId(autopilot_id),
            call.caller.person,
            body.as_edit(),
            expected_rev=expected_rev,
        )
        return await _show(conn, call, saved)

    answer = await call.database.transact(update)
    call.deps.bus.wake(wake_schedule)
    return answer


async def archive_autopilot(call: Call, autopilot_id: UUID) -> None:
    """Archived, not deleted: whatever it made stays (S2.7). A repeat changes nothing."""

    expected_rev = expected_version(call)

    async def archive(conn: Conn) -> None:
        await rules.archive_autopilot(
            conn,
            call.caller.workspace_id,
            AutopilotId(autopilot_id),
            call.caller.person,
            expected_rev=expected_rev,
        )

    await call.database.transact(archive)


async def _show(conn: Conn, call: Call, autopilot: Autopilot) -> AutopilotDetail:
    granted = (await collaborators.list_collaborators(conn, [autopilot.id]))[autopilot.id]
    rights = rights_of(autopilot, granted, call.caller)
    found = await triggers.list_triggers(conn, autopilot.workspace_id, autopilot.id)
    return show_detail(
        autopilot,
        rights,
        triggers=[
            show_trigger(
                trigger,
                call.deps.secrets,
                can_write=rights.can_write,
                ingress_url=call.deps.config.ingress_url,
                now=call.deps.clock.now(),
            )
            for trigger in found
        ],
        collaborators=granted,
        subscribers=await autopilots.list_subscribers(conn, autopilot.id),
        last_run=await autopilots.find_last_run(conn, autopilot.id),
    )


ROUTES = (
    get("/api/autopilots", list_autopilots),
    post(
        "/api/autopilots",
        create_autopilot,
        right=Action.AUTOPILOT_CREATE,
        refusals=(
            Code.INVOCATION_NOT_ALLOWED,
            Code.AGENT_RUNTIME_REQUIRED,
        ),
    ),
    get("/api/autopilots/{autopilot_id}", get_autopilot),
    patch(
        "/api/autopilots/{autopilot_id}",
        update_autopilot,
        right=Action.AUTOPILOT_WRITE,
        refusals=(
            Code.INVOCATION_NOT_ALLOWED,
            Code.AGENT_RUNTIME_REQUIRED,
            Code.OWNER_LEFT,
        ),
    ),
    delete("/api/autopilots/{autopilot_id}", archive_autopilot, right=Action.AUTOPILOT_WRITE, versioned=True),
)
