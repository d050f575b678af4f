"""What the scheduler did, over the wire (S7.16)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId
from autopilot.rules_api.paging import PageQuery
from autopilot.storage.execution_views import Execution
from autopilot.storage.executions import ErrorCode, State


class ExecutionQuery(PageQuery, frozen=True, kw_only=True):
    """A list of executions."""

    job: Annotated[str, msgspec.Meta(max_length=200, description="Only of the job with this name")] | None = (
        None
    )
    scope: (
        Annotated[str, msgspec.Meta(max_length=200, description="Only of this scope: of a trigger its id")]
        | None
    ) = None
    status: Annotated[State | None, msgspec.Meta(description="Only in this state")] = None


class ExecutionView(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of a job. `lease_until` is told while it runs; `result` and `error_message` of a job for all workspaces are null."""

    id: UUID
    job: str
    scope_kind: str
    scope: str
    autopilot_id: AutopilotId | None
    plan_time: datetime
    status: State
    attempts: int
    max_attempts: int
    next_retry_at: datetime | None
    runner_id: UUID
    heartbeat_at: datetime
    lease_until: datetime | None
    result: dict[str, Any] | None
    error_code: ErrorCode | None
    error_message: str | None
    started_at: datetime
    finished_at: datetime | None


def show_execution(execution: Execution) -> ExecutionView:
    return ExecutionView(
        id=execution.id,
        job=execution.job_name,
        scope_kind=execution.scope_kind,
        scope=execution.scope_id,
        autopilot_id=execution.autopilot_id,
        plan_time=execution.plan_time,
        status=execution.state,
        attempts=execution.attempts,
        max_attempts=execution.max_attempts,
        next_retry_at=execution.next_retry_at,
        runner_id=execution.runner_id,
        heartbeat_at=execution.heartbeat_at,
        lease_until=execution.stale_at if execution.state == "RUNNING" else None,
        result=execution.result,
        error_code=execution.error_code,
        error_message=execution.error_message,
        started_at=execution.started_at,
        finished_at=execution.finished_at,
    )
