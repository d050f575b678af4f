"""The rows that change when work ends: task, issue and run, locked top-down and updated under guards."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    IssueId,
    LeaseToken,
    RunId,
    RuntimeId,
    TaskId,
    WorkspaceId,
)
from autopilot.domain.states import FailureKind, IssueStatus, ReasonCode, RunStatus, TaskStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("endings")


class TaskLinks(msgspec.Struct, frozen=True, kw_only=True):
    """What a task belongs to, for ever; `run_id` is the run that made its issue, or its own."""

    id: TaskId
    workspace_id: WorkspaceId
    agent_id: AgentId
    issue_id: IssueId | None
    run_id: RunId | None
    autopilot_id: AutopilotId | None


class IssueLinks(msgspec.Struct, frozen=True, kw_only=True):
    """What an issue came from, for ever; both origins are None for an issue made by a person."""

    id: IssueId
    workspace_id: WorkspaceId
    origin_run_id: RunId | None
    origin_autopilot_id: AutopilotId | None


class LockedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task under lock."""

    status: TaskStatus
    lease_token: LeaseToken | None
    runtime_id: RuntimeId | None
    attempt: int
    max_attempts: int
    claims: int


async def read_task_links(conn: Conn, task_id: TaskId) -> TaskLinks | None:
    """The links of a task, or None where there is no such task."""
    row = await conn.fetchrow(SQL["read_task_links"], task_id)
    return TaskLinks(**row) if row is not None else None


async def read_issue_links(conn: Conn, workspace_id: WorkspaceId, issue_id: IssueId) -> IssueLinks | None:
    """The links of an issue of this workspace, or None."""
    row = await conn.fetchrow(SQL["read_issue_links"], workspace_id, issue_id)
    return IssueLinks(**row) if row is not None else None


async def lock_run(conn: Conn, run_id: RunId) -> RunStatus | None:
    """Lock a run and read its state; None where retention has taken it."""
    status = await conn.fetchval(SQL["lock_run"], run_id)
    return RunStatus(status) if status is not None else None


async def lock_issue(conn: Conn, issue_id: IssueId) -> IssueStatus | None:
    """Lock an issue and read its state; None where it was deleted."""
    status = await conn.fetchval(SQL["lock_issue"], issue_id)
    return IssueStatus(status) if status is not None else None


async def lock_task(conn: Conn, task_id: TaskId) -> LockedTask:
    """Lock a task that exists."""
    row = await conn.fetchrow(SQL["lock_task"], task_id)
    assert row is not None
    return LockedTask(
        status=TaskStatus(row["status"]),
        lease_token=row["lease_token"],
        runtime_id=row["runtime_id"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        claims=row["claims"],
    )


async def lock_active_tasks(conn: Conn, issue_id: IssueId) -> list[tuple[TaskId, RuntimeId | None]]:
    """Lock the live tasks of an issue that is locked already."""
    return [(row["id"], row["runtime_id"]) for row in await conn.fetch(SQL["lock_active_tasks"], issue_id)]


async def end_task(
    conn: Conn,
    task_id: TaskId,
    status: TaskStatus,
    *,
    result: str | None = None,
    error: str | None = None,
    kind: FailureKind | None = None,
) -> None:
    """Give a live task its final state."""
    await conn.execute(SQL["end_task"], task_id, status, result, error, kind)


async def requeue_task(
    conn: Conn, task_id: TaskId, delay: timedelta, *, error: str, kind: FailureKind
) -> None:
    """Queue a held task again after `delay`, one attempt further."""
    await conn.execute(SQL["requeue_task"], task_id, delay, error, kind)


async def unclaim_task(conn: Conn, task_id: TaskId) -> None:
    """Queue a task that was claimed but never started, its attempt unchanged: the answer to the claim was lost."""
    await conn.execute(SQL["unclaim_task"], task_id)


async def has_active_task(conn: Conn, issue_id: IssueId) -> bool:
    """Whether an issue still has a live task."""
    return bool(await conn.fetchval(SQL["has_active_task"], issue_id))


async def move_issue(conn: Conn, issue_id: IssueId, status: IssueStatus, *, title: str | None = None) -> None:
    """Give an issue another state, and another title if one is given."""
    await conn.execute(SQL["move_issue"], issue_id, status, title)


async def add_comment(
    conn: Conn,
    comment_id: UUID,
    links: IssueLinks | TaskLinks,
    issue_id: IssueId,
    *,
    author_type: str,
    author_id: UUID,
    body: str,
) -> None:
    """Say something on an issue; `author_type` is agent, user or system."""
    await conn.execute(
        SQL["add_comment"], comment_id, links.workspace_id, issue_id, author_type, author_id, body
    )


async def finish_run(
    conn: Conn,
    run_id: RunId,
    status: RunStatus,
    *,
    result: str | None = None,
    code: ReasonCode | None = None,
    text: str | None = None,
) -> bool:
    """End a started run; False where it was final already or never started, and then nothing changes."""
    return await conn.fetchval(SQL["finish_run"], run_id, status, result, code, text) is not None


async def delete_issue(conn: Conn, issue_id: IssueId) -> None:
    """Remove an issue, its comments and subscribers."""
    await conn.execute(SQL["delete_issue"], issue_id)


async def lease_is_over(conn: Conn, task_id: TaskId) -> bool:
    """Whether a held task's lease, or its runtime's time for it, has run out by the database's clock."""
    return bool(await conn.fetchval(SQL["lease_is_over"], task_id))
