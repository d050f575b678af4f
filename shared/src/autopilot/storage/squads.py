"""Squads: a name that work is given to, and the agent that leads it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, SquadId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("squads")


class Squad(msgspec.Struct, frozen=True, kw_only=True):
    """A squad; its leader executes what is assigned to it."""

    id: SquadId
    workspace_id: WorkspaceId
    name: str
    leader_id: AgentId | None
    created_by: UserId
    created_at: datetime
    archived_at: datetime | None
    rev: int


async def insert_squad(
    conn: Conn,
    *,
    squad_id: SquadId,
    workspace_id: WorkspaceId,
    name: str,
    leader_id: AgentId,
    created_by: UserId,
) -> None:
    await conn.execute(SQL["insert_squad"], squad_id, workspace_id, name, leader_id, created_by)


async def find_squad(conn: Conn, workspace_id: WorkspaceId, squad_id: UUID) -> Squad | None:
    row = await conn.fetchrow(SQL["find_squad"], workspace_id, squad_id)
    return msgspec.convert(dict(row), Squad) if row is not None else None


async def list_squads(
    conn: Conn, workspace_id: WorkspaceId, *, archived: bool, before: UUID | None, limit: int
) -> list[Squad]:
    rows = await conn.fetch(SQL["list_squads"], workspace_id, archived, before, limit)
    return [msgspec.convert(dict(row), Squad) for row in rows]


async def lock_squad(conn: Conn, workspace_id: WorkspaceId, squad_id: UUID) -> None:
    """Hold a squad for an edit; read it in a later statement. Level 1 of the lock order, before agents."""
    await conn.execute(SQL["lock_squad"], workspace_id, squad_id)


async def update_squad(conn: Conn, squad_id: SquadId, *, name: str, leader_id: AgentId | None) -> None:
    await conn.execute(SQL["update_squad"], squad_id, name, leader_id)


async def archive_squad(conn: Conn, squad_id: SquadId) -> None:
    await conn.execute(SQL["archive_squad"], squad_id)
