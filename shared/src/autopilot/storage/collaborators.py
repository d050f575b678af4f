"""Collaborators: those who may write a rule beside its creator and the admins (S6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from autopilot.domain.ids import AutopilotId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("collaborators")


class Collaborator(msgspec.Struct, frozen=True, kw_only=True):
    """One grant."""

    user_id: UserId
    name: str
    granted_by: UserId
    created_at: datetime


async def list_collaborators(conn: Conn, ids: Sequence[AutopilotId]) -> dict[AutopilotId, list[Collaborator]]:
    """The collaborators of each rule in the order they were granted; every id is a key."""
    found: dict[AutopilotId, list[Collaborator]] = {autopilot_id: [] for autopilot_id in ids}
    for row in await conn.fetch(SQL["list_collaborators"], list(ids)):
        fields = dict(row)
        found[fields.pop("autopilot_id")].append(msgspec.convert(fields, Collaborator))
    return found


async def is_collaborator(conn: Conn, autopilot_id: AutopilotId, user_id: UserId) -> bool:
    return bool(await conn.fetchval(SQL["is_collaborator"], autopilot_id, user_id))


async def insert_collaborator(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    user_id: UserId,
    *,
    granted_by: UserId,
) -> None:
    """Grant; a repeat changes nothing."""
    await conn.execute(SQL["insert_collaborator"], workspace_id, autopilot_id, user_id, granted_by)


async def delete_collaborator(conn: Conn, autopilot_id: AutopilotId, user_id: UserId) -> None:
    """Revoke; a repeat changes nothing."""
    await conn.execute(SQL["delete_collaborator"], autopilot_id, user_id)
