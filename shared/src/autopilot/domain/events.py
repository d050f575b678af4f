"""Run events: what subscribers are told, ids and facts only, never secrets or bodies (S12.2)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from autopilot.domain.ids import (
    AutopilotId,
    DeliveryId,
    EventId,
    IssueId,
    RunId,
    TaskId,
    TriggerId,
    WorkspaceId,
)
from autopilot.domain.states import ReasonCode, RunStatus, Source


class EventKind(StrEnum):
    """The two run events (S2.5)."""

    STARTED = "run.started"
    DONE = "run.done"


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event as subscribers read it; `seq` is dense per workspace and epoch, and given in commit order.

    A new epoch begins where the database was restored: what the old one had behind that place is not this history.
    """

    event_id: EventId
    epoch: int
    seq: int
    kind: EventKind
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    run_id: RunId
    source: Source
    status: RunStatus
    occurred_at: datetime
    trigger_id: TriggerId | None = None
    delivery_id: DeliveryId | None = None
    issue_id: IssueId | None = None
    task_id: TaskId | None = None
    planned_at: datetime | None = None
    reason_code: ReasonCode | None = None
