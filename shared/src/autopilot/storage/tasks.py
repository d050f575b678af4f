"""Tasks as the workspace sees them: never their prompts, which may hold a payload, nor their lease tokens."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    IssueId,
    RunId,
    RuntimeId,
    TaskId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import FailureKind, TaskStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("tasks")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an agent, for an issue or for a bare run."""

    id: TaskId
    workspace_id: WorkspaceId
    agent_id: AgentId
    issue_id: IssueId | None
    run_id: RunId | None
    autopilot_id: AutopilotId | None
    accountable_id: UserId | None
    status: TaskStatus
    attempt: int
    max_attempts: int
    timeout_s: int
    available_at: datetime
    expires_at: datetime | None
    runtime_id: RuntimeId | None
    lease_until: datetime | None
    progress: str | None
    result: str | None
    error: str | None
    failure_kind: FailureKind | None
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


async def is_here(conn: Conn, workspace_id: WorkspaceId, task_id: TaskId) -> bool:
    """Whether there is such a task in the workspace."""
    return bool(await conn.fetchval(SQL["is_here"], workspace_id, task_id))


async def find_task(conn: Conn, workspace_id: WorkspaceId, task_id: UUID) -> Task | None:
    row = await conn.fetchrow(SQL["find_task"], workspace_id, task_id)
    return msgspec.convert(dict(row), Task) if row is not None else None


async def list_tasks(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    status: TaskStatus | None,
    agent_id: UUID | None,
    issue_id: UUID | None,
    limit: int,
) -> list[Task]:
    rows = await conn.fetch(SQL["list_tasks"], workspace_id, before, status, agent_id, issue_id, limit)
    return [msgspec.convert(dict(row), Task) for row in rows]
