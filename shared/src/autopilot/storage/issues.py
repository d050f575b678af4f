"""Issues and their comments as people see them; how they move is written in `endings`."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, IssueId, ProjectId, RunId, WorkspaceId
from autopilot.domain.states import IssueStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("issues")


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue; both origins are None for one that no run made."""

    id: IssueId
    workspace_id: WorkspaceId
    number: int
    key: str
    title: str
    body: str
    status: IssueStatus
    assignee_type: str | None
    assignee_id: UUID | None
    creator_type: str
    creator_id: UUID
    project_id: ProjectId | None
    origin_autopilot_id: AutopilotId | None
    origin_run_id: RunId | None
    rev: int
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """A comment; `author_type` is agent, user or system."""

    id: UUID
    author_type: str
    author_id: UUID
    body: str
    created_at: datetime


async def find_issue(conn: Conn, workspace_id: WorkspaceId, issue_id: UUID) -> Issue | None:
    row = await conn.fetchrow(SQL["find_issue"], workspace_id, issue_id)
    return msgspec.convert(dict(row), Issue) if row is not None else None


async def find_numbered(
    conn: Conn, workspace_id: WorkspaceId, number: int, *, prefix: str | None
) -> Issue | None:
    """An issue by its number; None too if `prefix` is not the workspace's."""
    row = await conn.fetchrow(SQL["find_numbered"], workspace_id, number, prefix)
    return msgspec.convert(dict(row), Issue) if row is not None else None


async def list_issues(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    status: IssueStatus | None,
    autopilot_id: UUID | None,
    limit: int,
) -> list[Issue]:
    rows = await conn.fetch(SQL["list_issues"], workspace_id, before, status, autopilot_id, limit)
    return [msgspec.convert(dict(row), Issue) for row in rows]


async def retitle_issue(conn: Conn, issue_id: IssueId, title: str) -> None:
    await conn.execute(SQL["retitle_issue"], issue_id, title)


async def list_comments(conn: Conn, issue_id: IssueId, *, before: UUID | None, limit: int) -> list[Comment]:
    rows = await conn.fetch(SQL["list_comments"], issue_id, before, limit)
    return [msgspec.convert(dict(row), Comment) for row in rows]


async def find_comment(conn: Conn, comment_id: UUID) -> Comment:
    """A comment that exists."""
    row = await conn.fetchrow(SQL["find_comment"], comment_id)
    assert row is not None
    return msgspec.convert(dict(row), Comment)
