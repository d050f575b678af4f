"""What stood between a rule and its runs: read for `explain` (S13.3), a few rows of an index at a time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    DeliveryId,
    IssueId,
    RunId,
    RuntimeId,
    TaskId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.rules import Rule
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import (
    DeliveryStatus,
    FailureKind,
    ReasonCode,
    RunStatus,
    Source,
    TaskStatus,
    TriggerKind,
)
from autopilot.storage import queries
from autopilot.storage.database import Conn
from autopilot.storage.executions import ErrorCode, State
from autopilot.storage.schedules import JOB_NAME

SQL = queries.load("explain")

MAX_LISTED = 20


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger as it stands, without its secrets; `published_in` is the version that last stamped it."""

    id: TriggerId
    kind: TriggerKind
    label: str | None
    enabled: bool
    cron: str | None
    timezone: str | None
    catch_up: CatchUp | None
    lateness_s: int | None
    next_run_at: datetime | None
    schedule_error: str | None
    provider: str | None
    event_filters: list[dict[str, Any]] | None
    pace_per_min: int | None
    published_by: UserId | None
    published_in: int | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A publication, with the rule as it said."""

    version: int
    publisher_type: str
    published_by: UserId | None
    edited_by: UserId | None
    change: str
    rule: Rule
    published_at: datetime


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned occurrence of a schedule trigger, and what came of it."""

    plan_time: datetime
    state: State
    attempts: int
    max_attempts: int
    next_retry_at: datetime | None
    runner_id: UUID
    stale_at: datetime
    result: dict[str, Any] | None
    error_code: ErrorCode | None
    error_message: str | None
    started_at: datetime
    finished_at: datetime | None

    @property
    def missed(self) -> int:
        """How many occurrences it left without a run."""
        return int((self.result or {}).get("missed", 0))


class BriefRun(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one run from another."""

    id: RunId
    source: Source
    status: RunStatus
    trigger_id: TriggerId | None
    planned_at: datetime | None
    delivery_id: DeliveryId | None
    originator_id: UserId | None
    created_at: datetime
    reason_code: ReasonCode | None


class BriefDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one delivery from another."""

    id: DeliveryId
    trigger_id: TriggerId
    event: str
    status: DeliveryStatus
    dedupe_key: str | None
    dedupe_source: str | None
    attempt_count: int
    run_id: RunId | None
    reason_code: ReasonCode | None
    replayed_from: DeliveryId | None
    received_at: datetime


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where something waits to be dispatched. `available_at` is for what waits for a later time; `ahead` counts to 10,000."""

    kind: Literal["queued", "retry", "paced", "parked"]
    claims: int
    attempts: int
    lease_until: datetime | None
    last_error: str | None
    enqueued_at: datetime
    available_at: datetime | None
    ahead: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task."""

    id: TaskId
    agent_id: AgentId
    status: TaskStatus
    attempt: int
    max_attempts: int
    available_at: datetime
    expires_at: datetime | None
    runtime_id: RuntimeId | None
    lease_until: datetime | None
    cancel_requested_at: datetime | None
    progress: str | None
    error: str | None
    failure_kind: FailureKind | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None


class Station(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime of an agent (all None if it is bound to none), and how many of its tasks are `ahead`."""

    runtime_id: RuntimeId | None
    name: str | None
    seen_at: datetime | None
    usable: bool
    detail: str | None
    repair_hint: str | None
    concurrency: int | None
    held: int
    ahead: int


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A person, and whether they are a member still."""

    id: UserId
    name: str
    present: bool


async def list_triggers(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    trigger_id: UUID | None = None,
    *,
    at: datetime | None = None,
) -> list[Trigger]:
    """The triggers that a rule has, and those it had `at` an instant; or the one named, deleted or not."""
    rows = await conn.fetch(SQL["list_triggers"], workspace_id, autopilot_id, trigger_id, at)
    return [msgspec.convert(dict(row), Trigger) for row in rows]


async def find_version_at(conn: Conn, autopilot_id: AutopilotId, at: datetime) -> Version | None:
    """The version in force at an instant; None before the first."""
    return _version(await conn.fetchrow(SQL["find_version_at"], autopilot_id, at))


async def find_version_after(conn: Conn, autopilot_id: AutopilotId, at: datetime) -> Version | None:
    """The first version published after an instant."""
    return _version(await conn.fetchrow(SQL["find_version_after"], autopilot_id, at))


async def find_version(conn: Conn, autopilot_id: AutopilotId, version: int) -> Version | None:
    return _version(await conn.fetchrow(SQL["find_version"], autopilot_id, version))


async def find_status_change(
    conn: Conn, autopilot_id: AutopilotId, status: str, until: datetime
) -> Version | None:
    """The version that brought the rule into the status that it has at an instant; None if it has another."""
    return _version(await conn.fetchrow(SQL["find_status_change"], autopilot_id, status, until))


async def find_disabling(
    conn: Conn, autopilot_id: AutopilotId, trigger_id: TriggerId, until: datetime
) -> Version | None:
    """The version that turned the trigger off that is off at an instant; None if it is on."""
    return _version(await conn.fetchrow(SQL["find_disabling"], autopilot_id, trigger_id, until))


async def find_plan(conn: Conn, trigger_id: TriggerId, since: datetime) -> Plan | None:
    """The trigger's first plan from an instant on."""
    row = await conn.fetchrow(SQL["find_plan"], JOB_NAME, trigger_id, since)
    return msgspec.convert(dict(row), Plan) if row is not None else None


async def list_runs_of(
    conn: Conn,
    autopilot_id: AutopilotId,
    triggers: Collection[TriggerId],
    start: datetime,
    end: datetime,
    *,
    trigger_id: TriggerId | None = None,
) -> list[BriefRun]:
    """The runs planned for [start, end), and those made then that nothing had planned, of one trigger if named."""
    planned = await conn.fetch(SQL["list_planned_runs"], list(triggers), start, end, MAX_LISTED)
    others = await conn.fetch(SQL["list_other_runs"], autopilot_id, start, end, trigger_id, MAX_LISTED)
    return [_run(row) for row in (*planned, *others)]


async def list_planned_runs(
    conn: Conn, trigger_id: TriggerId, start: datetime, end: datetime
) -> list[BriefRun]:
    """The trigger's runs planned for [start, end)."""
    rows = await conn.fetch(SQL["list_planned_runs"], [trigger_id], start, end, MAX_LISTED)
    return [_run(row) for row in rows]


async def list_live_runs(
    conn: Conn, autopilot_id: AutopilotId, beside: RunId, *, limit: int = 5
) -> list[BriefRun]:
    """What is in flight beside a run, oldest first."""
    return [_run(row) for row in await conn.fetch(SQL["list_live_runs"], autopilot_id, beside, limit)]


async def find_planned_run(conn: Conn, trigger_id: TriggerId) -> RunId | None:
    """The run of the trigger's newest occurrence."""
    row = await conn.fetchrow(SQL["find_planned_run"], trigger_id)
    return row["id"] if row is not None else None


async def list_deliveries(
    conn: Conn,
    autopilot_id: AutopilotId,
    start: datetime,
    end: datetime,
    *,
    trigger_id: UUID | None = None,
) -> list[BriefDelivery]:
    """The deliveries received in [start, end), oldest first, 20 at most."""
    rows = await conn.fetch(SQL["list_deliveries"], autopilot_id, start, end, trigger_id, MAX_LISTED)
    return [msgspec.convert(dict(row), BriefDelivery) for row in rows]


async def list_deliveries_near(
    conn: Conn, beside: DeliveryId, *, trigger_id: TriggerId, event: str, key: str | None, at: datetime
) -> list[BriefDelivery]:
    """Deliveries of the same event to the same trigger within ten minutes, oldest first.

    They are 20 at most: those with the same key, and the nearest.
    """
    rows = await conn.fetch(SQL["list_deliveries_near"], trigger_id, beside, at, event, key, MAX_LISTED)
    return sorted((msgspec.convert(dict(row), BriefDelivery) for row in rows), key=lambda one: one.id)


async def find_place(conn: Conn, subject: RunId | DeliveryId) -> Place | None:
    """Where a run or an undecided delivery waits."""
    row = await conn.fetchrow(SQL["find_place"], subject)
    return msgspec.convert(dict(row), Place) if row is not None else None


async def list_tasks(conn: Conn, task_id: TaskId | None, issue_id: IssueId | None) -> list[Work]:
    """A run's tasks, those of its issue included, newest first."""
    rows = await conn.fetch(SQL["list_tasks"], task_id, issue_id)
    return [msgspec.convert(dict(row), Work) for row in rows]


async def find_station(
    conn: Conn, workspace_id: WorkspaceId, agent_id: AgentId, *, task_id: TaskId
) -> Station | None:
    """The runtime for an agent's tasks now, seen from one of them."""
    row = await conn.fetchrow(SQL["find_station"], workspace_id, agent_id, task_id)
    return msgspec.convert(dict(row), Station) if row is not None else None


async def list_people(conn: Conn, workspace_id: WorkspaceId, ids: Collection[UserId]) -> dict[UserId, Person]:
    rows = await conn.fetch(SQL["list_people"], workspace_id, list(ids))
    return {row["id"]: Person(**row) for row in rows}


async def find_agent_name(
    conn: Conn, workspace_id: WorkspaceId, agent_id: AgentId, viewer: UserId | None
) -> str | None:
    """The agent's name, for somebody who may invoke it."""
    name: str | None = await conn.fetchval(SQL["find_agent_name"], workspace_id, agent_id, viewer)
    return name


def _version(row: Any) -> Version | None:
    return msgspec.convert(dict(row), Version) if row is not None else None


def _run(row: Any) -> BriefRun:
    return msgspec.convert(dict(row), BriefRun)
