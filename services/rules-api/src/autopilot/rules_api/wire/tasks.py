"""Tasks over the wire (S11.7)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, AutopilotId, IssueId, RunId, RuntimeId, TaskId, UserId
from autopilot.domain.states import FailureKind, TaskStatus
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.common import Query
from autopilot.storage.tasks import Task


class TaskQuery(PageQuery, frozen=True, kw_only=True):
    """A list of tasks."""

    status: TaskStatus | None = None
    agent: Annotated[UUID | None, msgspec.Meta(description="Only those of this agent")] = None
    issue: Annotated[UUID | None, msgspec.Meta(description="Only those of this issue")] = None


class OutputQuery(Query, frozen=True, kw_only=True):
    """Which output: of the newest attempt unless another is named, from the place that the page before ended at."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    place: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0


class OutputPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Some text; `place` is how many characters the attempt had printed before it, told or not."""

    place: int
    text: str
    created_at: datetime


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt has printed so far, in order. While it is live, ask again with `place` = `next_place`."""

    attempt: int
    status: TaskStatus
    pieces: list[OutputPiece]
    next_place: int
    more: bool


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
