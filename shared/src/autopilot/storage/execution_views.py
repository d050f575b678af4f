"""Executions as they are shown: those of a workspace's triggers, and those of the jobs that work for all (S7.16)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, TriggerId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn
from autopilot.storage.executions import ErrorCode, State
from autopilot.storage.schedules import JOB_NAME

SQL = queries.load("execution_views")

END: Final = (datetime(9999, 12, 31, tzinfo=UTC), UUID(int=(1 << 128) - 1))

Place = tuple[datetime, UUID]
"""Where a page begins: behind the plan with that time and id."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's row; `autopilot_id` is that of the trigger which is its scope. A job for all shows no result and no message."""

    id: UUID
    job_name: str
    scope_kind: str
    scope_id: str
    autopilot_id: AutopilotId | None
    plan_time: datetime
    state: State
    attempts: int
    max_attempts: int
    next_retry_at: datetime | None
    runner_id: UUID
    heartbeat_at: datetime
    stale_at: datetime
    result: dict[str, Any] | None
    error_code: ErrorCode | None
    error_message: str | None
    started_at: datetime
    finished_at: datetime | None


async def find_place(conn: Conn, execution_id: UUID) -> Place | None:
    """Where in the lists an execution stands; None once it is gone."""
    row = await conn.fetchrow(SQL["find_place"], execution_id)
    return (row["plan_time"], row["id"]) if row is not None else None


async def find_autopilot(conn: Conn, workspace_id: WorkspaceId, trigger_id: TriggerId) -> AutopilotId | None:
    """The rule of a trigger of this workspace, deleted or not."""
    found: AutopilotId | None = await conn.fetchval(SQL["find_autopilot"], workspace_id, trigger_id)
    return found


async def list_of_triggers(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    trigger_id: TriggerId | None,
    state: State | None,
    before: Place | None,
    limit: int,
) -> list[Execution]:
    """Plans of the workspace's triggers, or of one of them, newest first."""
    given = (workspace_id, JOB_NAME, trigger_id, *(before or END))
    if state == "FAILED":
        return _executions(await conn.fetch(SQL["list_failed_of_triggers"], *given, limit))
    return _executions(await conn.fetch(SQL["list_of_triggers"], *given, state, limit))


async def list_of_jobs(
    conn: Conn,
    *,
    job_name: str | None,
    scope_id: str | None,
    state: State | None,
    before: Place | None,
    limit: int,
) -> list[Execution]:
    """Plans of the jobs that work for all workspaces, newest first."""
    given = (job_name, scope_id, *(before or END), state, limit)
    return _executions(await conn.fetch(SQL["list_of_jobs"], *given))


def newest(executions: Sequence[Execution], limit: int) -> list[Execution]:
    """The first of several lists taken together."""
    return sorted(executions, key=lambda one: (one.plan_time, one.id), reverse=True)[:limit]


def _executions(rows: Sequence[Any]) -> list[Execution]:
    return [Execution(**row) for row in rows]
