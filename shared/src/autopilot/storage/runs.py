"""Runs as they are shown, with their place in the queue, their task and their issue; and the look-ups of those who ask for one."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

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
    WorkspaceId,
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
from autopilot.storage import queries
from autopilot.storage.bodies import body_of
from autopilot.storage.database import Conn

SQL = queries.load("runs")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run with what stands beside it; the fields of its queue entry, delivery, task and issue are None without one.

    `parked`: it waits behind a live run (queue_one). `paced`: it waits for its time within its trigger's pace.
    `next_attempt_at` and `lease_until` are the queue entry's.
    """

    id: RunId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    trigger_id: TriggerId | None
    source: Source
    status: RunStatus
    execution_mode: ExecutionMode
    rule_version_id: RuleVersionId
    rule_version: int
    planned_at: datetime | None
    delivery_id: DeliveryId | None
    event: str | None
    squad_id: SquadId | None
    agent_id: AgentId | None
    issue_id: IssueId | None
    task_id: TaskId | None
    originator_id: UserId | None
    accountable_id: UserId | None
    attribution_source: AttributionSource | None
    api_token_id: TokenId | None
    reason_code: ReasonCode | None
    failure_reason: str | None
    result: str | None
    missed_count: int | None
    dispatch_attempts: int
    last_dispatch_error: str | None
    next_attempt_at: datetime | None
    parked: bool
    paced: bool
    lease_until: datetime | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    received_at: datetime | None
    delivery_event: str | None
    task_status: TaskStatus | None
    task_attempt: int | None
    runtime_id: RuntimeId | None
    claimed_at: datetime | None
    task_started_at: datetime | None
    task_finished_at: datetime | None
    progress: str | None
    issue_key: str | None
    issue_status: IssueStatus | None


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was given: `payload` by an api caller, `body` by a webhook; `expired` where retention has taken that."""

    payload: bytes | None
    provider: str | None
    content_type: str | None
    body: bytes | None
    expired: bool


async def find_run(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, run_id: UUID
) -> Run | None:
    """One run of this rule."""
    row = await conn.fetchrow(SQL["find_run"], workspace_id, autopilot_id, run_id)
    return msgspec.convert(dict(row), Run) if row is not None else None


async def list_runs(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    *,
    before: UUID | None,
    offset: int,
    limit: int,
) -> list[Run]:
    """A rule's runs, newest first."""
    rows = await conn.fetch(SQL["list_runs"], workspace_id, autopilot_id, before, limit, offset)
    return [msgspec.convert(dict(row), Run) for row in rows]


async def find_payload(conn: Conn, run_id: RunId) -> Payload:
    """The payload of a run that exists."""
    row = await conn.fetchrow(SQL["find_payload"], run_id)
    assert row is not None
    return msgspec.convert(dict(row) | {"body": body_of(row)}, Payload)


async def find_by_key(
    conn: Conn, autopilot_id: AutopilotId, source: Source, actor: UserId | TokenId, key: str
) -> tuple[RunId, bytes] | None:
    """The run that this key made for this caller, and the SHA-256 of the body then."""
    row = await conn.fetchrow(SQL["find_by_key"], autopilot_id, source, actor, key)
    return (row["id"], row["idempotency_sha"]) if row is not None else None


async def find_settled(conn: Conn, ids: Collection[RunId]) -> list[RunId]:
    """Those of the runs that have left pending."""
    return [row["id"] for row in await conn.fetch(SQL["find_settled"], list(ids))]
