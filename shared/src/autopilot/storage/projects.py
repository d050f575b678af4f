"""Projects: where issues are filed."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import ProjectId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("projects")


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project of a workspace."""

    id: ProjectId
    workspace_id: WorkspaceId
    name: str
    created_by: UserId
    created_at: datetime
    rev: int


async def insert_project(
    conn: Conn, *, project_id: ProjectId, workspace_id: WorkspaceId, name: str, created_by: UserId
) -> None:
    await conn.execute(SQL["insert_project"], project_id, workspace_id, name, created_by)


async def find_project(conn: Conn, workspace_id: WorkspaceId, project_id: UUID) -> Project | None:
    row = await conn.fetchrow(SQL["find_project"], workspace_id, project_id)
    return msgspec.convert(dict(row), Project) if row is not None else None


async def list_projects(
    conn: Conn, workspace_id: WorkspaceId, *, before: UUID | None, limit: int
) -> list[Project]:
    rows = await conn.fetch(SQL["list_projects"], workspace_id, before, limit)
    return [msgspec.convert(dict(row), Project) for row in rows]


async def rename_project(conn: Conn, project_id: ProjectId, name: str) -> None:
    await conn.execute(SQL["rename_project"], project_id, name)


async def lock_project(conn: Conn, workspace_id: WorkspaceId, project_id: UUID) -> None:
    """Hold a project for an edit; read it in a later statement. Level 1 of the lock order."""
    await conn.execute(SQL["lock_project"], workspace_id, project_id)


async def delete_project(conn: Conn, project_id: ProjectId) -> None:
    """The schema clears the field of rules and issues that named the project (S4.7), which the caller holds."""
    await conn.execute(SQL["lock_rules"], project_id)
    await conn.execute(SQL["delete_project"], project_id)
