"""Triggers: locked with their rule, written, listed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from autopilot.domain.ids import AutopilotId, RuleVersionId, TriggerId, UserId, WorkspaceId
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import TriggerKind
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("triggers")


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger as it is stored, with its secrets encrypted. `schedule_rev` counts what changes when it fires."""

    id: TriggerId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    kind: TriggerKind
    label: str | None
    enabled: bool
    rev: int
    published_by: UserId | None
    published_version_id: RuleVersionId
    cron: str | None
    timezone: str | None
    catch_up: CatchUp | None
    lateness_s: int | None
    next_run_at: datetime | None
    schedule_rev: int
    schedule_error: str | None
    tzdata_version: str | None
    token_hash: bytes | None
    token_enc: bytes | None
    token_hint: str | None
    provider: str | None
    event_filters: list[dict[str, Any]] | None
    pace_per_min: int | None
    secret_enc: bytes | None
    secret_hint: str | None
    secret_fingerprint: str | None
    previous_secret_enc: bytes | None
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


class ListedTrigger(Trigger, frozen=True, kw_only=True):
    """A trigger with when it last fired."""

    last_fired_at: datetime | None


_COLUMNS = Trigger.__struct_fields__
_FIXED = {"workspace_id", "autopilot_id", "kind", "created_at"}
_UPDATED = tuple(column for column in _COLUMNS if column not in _FIXED)


async def lock_triggers(
    conn: Conn, workspace_id: WorkspaceId, ids: Sequence[AutopilotId]
) -> dict[AutopilotId, list[Trigger]]:
    """Take level 3 of the lock order for the live triggers of locked rules; every rule is a key."""
    rows = await conn.fetch(SQL["lock_triggers"], workspace_id, list(ids))
    found: dict[AutopilotId, list[Trigger]] = {autopilot_id: [] for autopilot_id in ids}
    for row in rows:
        found[row["autopilot_id"]].append(msgspec.convert(dict(row), Trigger))
    return found


async def list_triggers(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId
) -> list[ListedTrigger]:
    """The live triggers of one rule, oldest first."""
    rows = await conn.fetch(SQL["list_triggers"], workspace_id, autopilot_id)
    return [msgspec.convert(dict(row), ListedTrigger) for row in rows]


async def find_trigger(conn: Conn, workspace_id: WorkspaceId, trigger_id: TriggerId) -> ListedTrigger | None:
    """A live trigger."""
    row = await conn.fetchrow(SQL["find_trigger"], workspace_id, trigger_id)
    return msgspec.convert(dict(row), ListedTrigger) if row is not None else None


async def insert_trigger(conn: Conn, trigger: Trigger) -> None:
    await conn.execute(SQL["insert_trigger"], *(getattr(trigger, column) for column in _COLUMNS))


async def update_trigger(conn: Conn, trigger: Trigger) -> None:
    """Write every editable field of a trigger that the caller has locked."""
    await conn.execute(SQL["update_trigger"], *(getattr(trigger, column) for column in _UPDATED))
