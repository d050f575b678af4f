"""Runs over the wire: how they are asked for, and how they are shown with every time on their way (S2.6, S13.1, S13.4)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    DeliveryId,
    IssueId,
    RuleVersionId,
    RunId,
    RuntimeId,
    SquadId,
    TaskId,
    TokenId,
    TriggerId,
    UserId,
)
from autopilot.domain.states import (
    AttributionSource,
    ExecutionMode,
    IssueStatus,
    ReasonCode,
    RunStatus,
    Source,
    TaskStatus,
)
from autopilot.domain.webhook.body import parse_body
from autopilot.domain.webhook.envelope import event_payload
from autopilot.domain.webhook.providers import GENERIC, PROVIDERS
from autopilot.rules_api.paging import HistoryQuery
from autopilot.rules_api.wire.common import Body, Query
from autopilot.storage.runs import Payload, Run

JsonPayload = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        extra_json_schema={"type": ["object", "array", "null"]},
        description="At most 256 KiB, kept byte by byte; null is none",
        examples=[{"build": 1024, "branch": "main"}],
    ),
]


class RunQuery(HistoryQuery, frozen=True, kw_only=True):
    """A list of runs."""


class WaitQuery(Query, frozen=True, kw_only=True):
    """How long the answer may wait for the run to leave pending."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=10, description="Seconds")] = 1.0


class RunCreate(Body, frozen=True, kw_only=True):
    """A run of source api: an event's name and its payload, a JSON object or array of at most 256 KiB, both kept on the run."""

    payload: JsonPayload | msgspec.UnsetType = msgspec.UNSET
    event: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\S")] | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """When each thing happened to a run, by the database's clock; null for what has not, or not yet."""

    planned_at: datetime | None
    received_at: datetime | None
    admitted_at: datetime
    dispatched_at: datetime | None
    claimed_at: datetime | None
    task_started_at: datetime | None
    task_finished_at: datetime | None
    finished_at: datetime | None


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `next_attempt_at` and `lease_until` speak of its dispatch while it is pending.

    It waits for no attempt but behind a live run (`parked`, overlap policy queue_one), or until `next_attempt_at` because
    its trigger has brought more than its pace allows (`paced`).
    """

    id: RunId
    autopilot_id: AutopilotId
    trigger_id: TriggerId | None
    source: Source
    status: RunStatus
    execution_mode: ExecutionMode
    rule_version: int
    rule_version_id: RuleVersionId
    planned_at: datetime | None
    delivery_id: DeliveryId | None
    event: str | None
    squad_id: SquadId | None
    agent_id: AgentId | None
    issue_id: IssueId | None
    issue_key: str | None
    issue_status: IssueStatus | None
    task_id: TaskId | None
    task_status: TaskStatus | None
    task_attempt: int | None
    runtime_id: RuntimeId | None
    progress: str | None
    originator_id: UserId | None
    accountable_id: UserId | None
    attribution_source: AttributionSource | None
    api_token_id: TokenId | None
    reason_code: ReasonCode | None
    failure_reason: str | None
    result: str | None
    missed_count: int | None
    dispatch_attempts: int
    next_attempt_at: datetime | None
    lease_until: datetime | None
    parked: bool
    paced: bool
    last_dispatch_error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    timeline: Timeline


class RunDetail(RunView, frozen=True, kw_only=True):
    """One run with its payload: null for who may not write the rule (S6.5), and where retention has taken a webhook's body."""

    payload: Any
    payload_expired: bool


def show_run(run: Run) -> RunView:
    return RunView(**_common(run))


def show_detail(run: Run, payload: Payload | None) -> RunDetail:
    """`payload` is None for a caller who may not see it."""
    return RunDetail(
        **_common(run),
        payload=_payload_of(payload) if payload is not None else None,
        payload_expired=payload.expired if payload is not None else False,
    )


def _payload_of(found: Payload) -> object:
    if found.payload is not None:
        return msgspec.Raw(found.payload)
    if found.body is None:
        return None
    provider = PROVIDERS.get(found.provider or "", GENERIC)
    return event_payload(provider, parse_body(found.body, found.content_type).value)


def _common(run: Run) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: getattr(run, name) for name in RunView.__struct_fields__ if name not in ("timeline", "event")
    }
    shown["event"] = run.delivery_event if run.delivery_id is not None else run.event
    shown["timeline"] = Timeline(
        planned_at=run.planned_at,
        received_at=run.received_at,
        admitted_at=run.created_at,
        dispatched_at=run.started_at,
        claimed_at=run.claimed_at,
        task_started_at=run.task_started_at,
        task_finished_at=run.task_finished_at,
        finished_at=run.completed_at,
    )
    return shown
