"""Workspaces."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import UserId, WorkspaceId
from autopilot.domain.permissions import Role
from autopilot.domain.states import AttributionPolicy
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("workspaces")


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace; `attribution_policy` says who answers when no publisher is left (S5.2)."""

    id: WorkspaceId
    slug: str
    name: str
    issue_prefix: str
    attribution_policy: AttributionPolicy
    created_at: datetime
    rev: int


class WorkspaceOf(Workspace, frozen=True, kw_only=True):
    """A workspace as one of its members has it."""

    role: Role


async def insert_workspace(
    conn: Conn, *, workspace_id: WorkspaceId, slug: str, name: str, issue_prefix: str
) -> Workspace:
    """A new workspace, complete with its counter and event head; ConstraintViolated if the slug is taken."""
    row = await conn.fetchrow(SQL["insert_workspace"], workspace_id, slug, name, issue_prefix)
    assert row is not None
    return msgspec.convert(dict(row), Workspace)


async def find_workspace(conn: Conn, workspace_id: WorkspaceId) -> Workspace | None:
    row = await conn.fetchrow(SQL["find_workspace"], workspace_id)
    return msgspec.convert(dict(row), Workspace) if row is not None else None


async def find_workspace_by_slug(conn: Conn, slug: str) -> Workspace | None:
    row = await conn.fetchrow(SQL["find_workspace_by_slug"], slug)
    return msgspec.convert(dict(row), Workspace) if row is not None else None


async def list_workspaces_of(
    conn: Conn, user_id: UserId, *, only: WorkspaceId | None, before: UUID | None, limit: int
) -> list[WorkspaceOf]:
    rows = await conn.fetch(SQL["list_workspaces_of"], user_id, only, before, limit)
    return [msgspec.convert(dict(row), WorkspaceOf) for row in rows]


async def lock_workspace(conn: Conn, workspace_id: WorkspaceId) -> None:
    """Hold a workspace for an edit; read it in a later statement."""
    await conn.execute(SQL["lock_workspace"], workspace_id)


async def update_workspace(
    conn: Conn, workspace_id: WorkspaceId, *, name: str, attribution_policy: AttributionPolicy
) -> None:
    await conn.execute(SQL["update_workspace"], workspace_id, name, attribution_policy)
