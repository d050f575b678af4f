"""Agents, and with whom they are shared."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, RuntimeId, UserId, WorkspaceId
from autopilot.domain.permissions import Visibility
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("agents")


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as one viewer sees it; `invocable` says whether that viewer may have it work (S4.4)."""

    id: AgentId
    workspace_id: WorkspaceId
    name: str
    owner_id: UserId
    visibility: Visibility
    runtime_id: RuntimeId | None
    created_at: datetime
    archived_at: datetime | None
    rev: int
    shared_with: list[UserId]
    invocable: bool


async def insert_agent(
    conn: Conn,
    *,
    agent_id: AgentId,
    workspace_id: WorkspaceId,
    name: str,
    owner_id: UserId,
    visibility: Visibility,
    runtime_id: RuntimeId | None,
) -> None:
    await conn.execute(SQL["insert_agent"], agent_id, workspace_id, name, owner_id, visibility, runtime_id)


async def find_agent(
    conn: Conn, workspace_id: WorkspaceId, agent_id: UUID, viewer: UserId | None
) -> Agent | None:
    """The agent, archived or not; `viewer` None is a program of the workspace."""
    row = await conn.fetchrow(SQL["find_agent"], workspace_id, agent_id, viewer)
    return msgspec.convert(dict(row), Agent) if row is not None else None


async def list_agents(
    conn: Conn,
    workspace_id: WorkspaceId,
    viewer: UserId | None,
    *,
    archived: bool,
    before: UUID | None,
    limit: int,
) -> list[Agent]:
    """Only what the viewer may invoke (S13.5); archived ones too, if asked."""
    rows = await conn.fetch(SQL["list_agents"], workspace_id, viewer, archived, before, limit)
    return [msgspec.convert(dict(row), Agent) for row in rows]


async def lock_agent(conn: Conn, workspace_id: WorkspaceId, agent_id: UUID) -> None:
    """Hold an agent for an edit; read it in a later statement. Level 1 of the lock order, after its runtime."""
    await conn.execute(SQL["lock_agent"], workspace_id, agent_id)


async def hold_agent(conn: Conn, workspace_id: WorkspaceId, agent_id: UUID) -> None:
    """Keep an agent as it is until the transaction ends, for whoever binds something to it."""
    await conn.execute(SQL["hold_agent"], workspace_id, agent_id)


async def update_agent(
    conn: Conn, agent_id: AgentId, *, name: str, runtime_id: RuntimeId | None, visibility: Visibility
) -> None:
    await conn.execute(SQL["update_agent"], agent_id, name, runtime_id, visibility)


async def archive_agent(conn: Conn, agent_id: AgentId) -> None:
    await conn.execute(SQL["archive_agent"], agent_id)


async def insert_share(conn: Conn, workspace_id: WorkspaceId, agent_id: AgentId, user_id: UUID) -> None:
    """ConstraintViolated (`agent_share_member_fk`) for somebody who is no member."""
    await conn.execute(SQL["insert_share"], workspace_id, agent_id, user_id)


async def delete_share(conn: Conn, workspace_id: WorkspaceId, agent_id: AgentId, user_id: UUID) -> None:
    await conn.execute(SQL["delete_share"], workspace_id, agent_id, user_id)
