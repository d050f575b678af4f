"""Use cases on triggers: add, edit, delete, new URL, signing secret; the rule is always locked first (S8.7, S9.1, S9.13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from autopilot.domain import cron
from autopilot.domain.errors import Conflict, InvalidValue, NotFound
from autopilot.domain.ids import AutopilotId, RuleVersionId, TriggerId, UserId, WorkspaceId
from autopilot.domain.permissions import Action
from autopilot.domain.rule_fields import (
    DEFAULT_GRACE,
    MAX_TRIGGERS,
    checked_label,
    checked_pace,
    checked_secret,
)
from autopilot.domain.schedule import CatchUp, check_catch_up
from autopilot.domain.states import OverlapPolicy, TriggerKind
from autopilot.domain.webhook import filters, providers, tokens
from autopilot.engine.publish import HeldRule, hold_rule, save_rule
from autopilot.engine.revisions import check_rev
from autopilot.engine.rule_access import find_rule, hold_people, require
from autopilot.engine.secrets import Vault, fingerprint
from autopilot.kit.ids import random_bytes
from autopilot.storage import facts
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn
from autopilot.storage.triggers import Trigger

_OTHER_KIND = {
    TriggerKind.SCHEDULE: ("provider", "event_filters", "pace_per_min", "signing_secret"),
    TriggerKind.WEBHOOK: ("cron", "timezone", "catch_up", "lateness_s"),
}


class TriggerEdit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said about a trigger; what is left unset stays as it is, or has its default in a new one.

    `event_filters` is the JSON value as sent (S9.9). `signing_secret` belongs to a new trigger only.
    """

    label: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    cron: str | UnsetType | None = UNSET
    timezone: str | UnsetType | None = UNSET
    catch_up: CatchUp | UnsetType | None = UNSET
    lateness_s: int | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    event_filters: object = UNSET
    pace_per_min: int | UnsetType | None = UNSET
    signing_secret: str | UnsetType | None = UNSET


class NewTrigger(TriggerEdit, frozen=True, kw_only=True):
    """A trigger to be made. `id` is made once by the caller."""

    id: TriggerId
    kind: TriggerKind


async def add_trigger(
    conn: Conn,
    vault: Vault,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    editor: UserId,
    new: NewTrigger,
) -> Trigger:
    """Give a rule one more trigger; a webhook's URL token is in `token_enc`, encrypted."""
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    if len(held.triggers) >= MAX_TRIGGERS:
        raise InvalidValue("kind", f"an autopilot has at most {MAX_TRIGGERS} triggers")
    now = await facts.database_now(conn)
    empty: dict[str, Any] = dict.fromkeys(Trigger.__struct_fields__)
    blank = Trigger(
        **empty
        | {
            "id": new.id,
            "workspace_id": workspace_id,
            "autopilot_id": autopilot_id,
            "kind": new.kind,
            "enabled": True,
            "rev": 1,
            "published_version_id": RuleVersionId(new.id),
            "schedule_rev": 1,
            "created_at": now,
            "updated_at": now,
            **(_NEW_SCHEDULE if new.kind is TriggerKind.SCHEDULE else _new_webhook(vault, new)),
        }
    )
    trigger = _edited(held.autopilot, blank, new)
    if new.kind is TriggerKind.SCHEDULE and trigger.cron is None:
        raise InvalidValue("cron", "a schedule needs a cron expression", code="invalid_cron")
    after = HeldRule(autopilot=held.autopilot, triggers=(*held.triggers, trigger))
    return _of(await save_rule(conn, held, after, editor), trigger.id)


async def update_trigger(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: TriggerId,
    editor: UserId,
    edit: TriggerEdit,
    *,
    expected_rev: int | None = None,
) -> Trigger:
    """Apply an edit; Conflict `edit_conflict` if `expected_rev` is given and another edit came first."""
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    before = _of(held, trigger_id)
    check_rev(before.rev, expected_rev)
    if edit.signing_secret is not UNSET:
        raise InvalidValue(
            "signing_secret", "is set by a route of its own, so that the old one can stay for a while"
        )
    return await _replace(conn, held, _edited(held.autopilot, before, edit), editor)


async def delete_trigger(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: TriggerId,
    editor: UserId,
    *,
    expected_rev: int | None = None,
) -> None:
    """Its token is dead at once and it leaves the lists; what it started goes on (S7.15)."""
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    before = _of(held, trigger_id)
    check_rev(before.rev, expected_rev)
    now = await facts.database_now(conn)
    dead: dict[str, Any] = {"deleted_at": now, "token_hash": None, "token_enc": None, "token_hint": None}
    await _replace(
        conn,
        held,
        msgspec.structs.replace(before, **dead, **_NO_SECRET, **_NO_PREVIOUS),
        editor,
    )


async def rotate_url(
    conn: Conn,
    vault: Vault,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: TriggerId,
    editor: UserId,
    *,
    expected_rev: int | None = None,
) -> Trigger:
    """A new URL; the old one is dead at once (S9.1)."""
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    trigger = _webhook(held, trigger_id)
    check_rev(trigger.rev, expected_rev)
    return await _replace(conn, held, msgspec.structs.replace(trigger, **_new_token(vault)), editor)


async def set_signing_secret(
    conn: Conn,
    vault: Vault,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: TriggerId,
    editor: UserId,
    secret: str,
    *,
    grace: timedelta | None = None,
    expected_rev: int | None = None,
) -> Trigger:
    """Sign with another secret; the one before stays valid for `grace` (default 24 h, S9.13).

    The same secret again changes nothing, except that a given `grace` counts anew for the one before, while that is valid.
    """
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    trigger = _webhook(held, trigger_id)
    check_rev(trigger.rev, expected_rev)
    now = await facts.database_now(conn)
    until = now + (DEFAULT_GRACE if grace is None else grace)
    checked = checked_secret(secret, "secret")
    changes: dict[str, Any]
    if trigger.secret_fingerprint == fingerprint(checked):
        if grace is None:
            return trigger
        ended = trigger.previous_secret_until is None or trigger.previous_secret_until <= now
        previous, changes = None if ended else trigger.previous_secret_enc, {}
    else:
        previous, changes = trigger.secret_enc, _secret(vault, checked)
    if previous is None or until <= now:
        changes |= _NO_PREVIOUS
    else:
        changes |= {"previous_secret_enc": previous, "previous_secret_until": until}
    return await _replace(conn, held, msgspec.structs.replace(trigger, **changes), editor)


async def clear_signing_secret(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: TriggerId,
    editor: UserId,
    *,
    expected_rev: int | None = None,
) -> Trigger:
    """Take requests without a signature again, from now on; the URL alone is the credential (S9.6)."""
    held = await _hold(conn, workspace_id, autopilot_id, editor)
    trigger = _webhook(held, trigger_id)
    check_rev(trigger.rev, expected_rev)
    return await _replace(conn, held, msgspec.structs.replace(trigger, **_NO_SECRET, **_NO_PREVIOUS), editor)


async def _hold(conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, editor: UserId) -> HeldRule:
    """The rule under its locks, with the editor's right to write it judged under them."""
    seen = await find_rule(conn, workspace_id, autopilot_id)
    role = await hold_people(conn, workspace_id, editor)
    await require(conn, seen, editor, role, Action.AUTOPILOT_WRITE)
    held = await hold_rule(conn, workspace_id, autopilot_id)
    await require(conn, held.autopilot, editor, role, Action.AUTOPILOT_WRITE)
    return held


def _of(held: HeldRule, trigger_id: TriggerId) -> Trigger:
    for trigger in held.triggers:
        if trigger.id == trigger_id:
            return trigger
    raise NotFound("There is no such trigger.")


def _webhook(held: HeldRule, trigger_id: TriggerId) -> Trigger:
    trigger = _of(held, trigger_id)
    if trigger.kind is not TriggerKind.WEBHOOK:
        raise Conflict("Only a webhook trigger has a URL and a signing secret.", code="not_a_webhook")
    return trigger


async def _replace(conn: Conn, held: HeldRule, trigger: Trigger, editor: UserId) -> Trigger:
    triggers = tuple(trigger if old.id == trigger.id else old for old in held.triggers)
    after = HeldRule(autopilot=held.autopilot, triggers=triggers)
    return _of(await save_rule(conn, held, after, editor), trigger.id)


_NEW_SCHEDULE: dict[str, Any] = {"timezone": "UTC", "catch_up": CatchUp.LATEST}
_NO_SECRET: dict[str, Any] = dict.fromkeys(("secret_enc", "secret_hint", "secret_fingerprint"))
_NO_PREVIOUS: dict[str, Any] = dict.fromkeys(("previous_secret_enc", "previous_secret_until"))


def _new_webhook(vault: Vault, new: NewTrigger) -> dict[str, Any]:
    fields = {"provider": providers.GENERIC.name, **_new_token(vault)}
    if new.signing_secret is None or isinstance(new.signing_secret, UnsetType):
        return fields
    return fields | _secret(vault, checked_secret(new.signing_secret, "signing_secret"))


def _new_token(vault: Vault) -> dict[str, Any]:
    token = tokens.new_webhook_token(random_bytes(tokens.TOKEN_BYTES))
    return {
        "token_hash": tokens.token_hash(token),
        "token_enc": vault.encrypt(token),
        "token_hint": tokens.hint(token),
    }


def _secret(vault: Vault, secret: str) -> dict[str, Any]:
    return {
        "secret_enc": vault.encrypt(secret),
        "secret_hint": tokens.hint(secret),
        "secret_fingerprint": fingerprint(secret),
    }


def _edited(autopilot: Autopilot, before: Trigger, edit: TriggerEdit) -> Trigger:
    for field in _OTHER_KIND[before.kind]:
        if getattr(edit, field) is not UNSET:
            raise InvalidValue(field, f"does not belong to a {before.kind} trigger")
    changes: dict[str, Any] = {}
    if not isinstance(edit.label, UnsetType):
        changes["label"] = checked_label(edit.label)
    if not isinstance(edit.enabled, UnsetType):
        changes["enabled"] = edit.enabled
    if before.kind is TriggerKind.SCHEDULE:
        changes |= _edited_schedule(autopilot, before, edit)
    else:
        changes |= _edited_webhook(edit)
    return msgspec.structs.replace(before, **changes)


def _edited_schedule(autopilot: Autopilot, before: Trigger, edit: TriggerEdit) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not isinstance(edit.timezone, UnsetType):
        changes["timezone"] = cron.zone("UTC" if edit.timezone is None else edit.timezone).key
    if not isinstance(edit.cron, UnsetType):
        changes["cron"] = cron.parse(edit.cron or "").expr
    if not isinstance(edit.catch_up, UnsetType):
        changes["catch_up"] = edit.catch_up or CatchUp.LATEST
    if not isinstance(edit.lateness_s, UnsetType):
        changes["lateness_s"] = edit.lateness_s
    check_catch_up(
        changes.get("catch_up", before.catch_up or CatchUp.LATEST),
        changes.get("lateness_s", before.lateness_s),
        overlaps_allowed=autopilot.overlap_policy is OverlapPolicy.ALLOW,
    )
    return changes


def _edited_webhook(edit: TriggerEdit) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not isinstance(edit.provider, UnsetType):
        changes["provider"] = providers.get(
            providers.GENERIC.name if edit.provider is None else edit.provider
        ).name
    if edit.event_filters is not UNSET:
        rows = filters.parse_filters(edit.event_filters)
        changes["event_filters"] = [_stored(row) for row in rows] or None
    if not isinstance(edit.pace_per_min, UnsetType):
        changes["pace_per_min"] = checked_pace(edit.pace_per_min)
    return changes


def _stored(row: filters.EventFilter) -> dict[str, Any]:
    return {"event": row.event} | ({"actions": row.actions} if row.actions else {})
