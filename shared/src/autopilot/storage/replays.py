"""Deliveries taken once more: an original held against retention, and its replay born undecided beside it (S9.11)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, DeliveryId, TriggerId, UserId, WorkspaceId
from autopilot.domain.states import DeliveryStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("replays")


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the replay was written; if not, the original has no body any more or its key is taken."""

    inserted: bool
    has_body: bool


async def find_replay(conn: Conn, original: UUID, key: str) -> DeliveryId | None:
    """The replay of this delivery with this key."""
    found = await conn.fetchval(SQL["find_replay"], original, key)
    return DeliveryId(found) if found is not None else None


async def find_trigger(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, delivery_id: UUID
) -> TriggerId | None:
    """The trigger of a delivery of this rule; None if there is no such delivery."""
    found = await conn.fetchval(SQL["find_trigger"], workspace_id, autopilot_id, delivery_id)
    return TriggerId(found) if found is not None else None


async def hold_original(conn: Conn, delivery_id: UUID) -> DeliveryStatus | None:
    """Keep a delivery with its body until the transaction ends, and say what it is; None if it has gone."""
    found = await conn.fetchval(SQL["hold_original"], delivery_id)
    return DeliveryStatus(found) if found is not None else None


async def insert_replay(
    conn: Conn, replay_id: DeliveryId, original: UUID, replayed_by: UserId, key: str | None
) -> Inserted:
    """Write the replay of a held delivery, undecided; its entry, or what becomes of it, is the caller's."""
    row = await conn.fetchrow(SQL["insert_replay"], replay_id, original, replayed_by, key)
    return msgspec.convert(dict(row or {}), Inserted)
