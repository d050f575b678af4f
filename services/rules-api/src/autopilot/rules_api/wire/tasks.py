"""Tasks over the wire (S11.7)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, AutopilotId, IssueId, RunId, RuntimeId, TaskId, UserId
from autopilot.domain.states import FailureKind, TaskStatus
from autopilot.rules_api.paging import PageQuery
from autopilot.storage.tasks import Task


class TaskQuery(PageQuery, frozen=True, kw_only=True):
    """A list of tasks."""

    status: TaskStatus | None = None
    agent: Annotated[UUID | None, msgspec.Meta(description="Only those of this agent")] = None
    issue: Annotated[UUID | None, msgspec.Meta(description="Only those of this issue")] = None


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task. What its agent was told stands in the issue, or in the run for those who may see payloads."""

    id: TaskId
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


def show_task(task: Task) -> TaskView:
    return TaskView(**{name: getattr(task, name) for name in TaskView.__struct_fields__})
