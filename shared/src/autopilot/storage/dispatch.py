"""What dispatch reads and writes: facts of pending runs and their rules, then issues, tasks and who is told (S3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from autopilot.domain.admission import Executor
from autopilot.domain.attribution import Candidate
from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    DeliveryId,
    IssueId,
    ProjectId,
    RuleVersionId,
    RunId,
    TaskId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.rules import Rule
from autopilot.domain.states import AssigneeType, AttributionPolicy, ExecutionMode, Source, TriggerKind
from autopilot.storage import queries
from autopilot.storage.bodies import body_of
from autopilot.storage.database import Conn
from autopilot.storage.facts import executor_of

SQL = queries.load("dispatch")


class RunTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a run as it is now, deleted or not."""

    id: TriggerId
    kind: TriggerKind
    label: str | None
    timezone: str | None
    publisher: Candidate | None


class RunDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The webhook delivery behind a run; `body` is what was received, byte for byte, None where retention has taken it."""

    id: DeliveryId
    provider: str
    event: str
    content_type: str | None
    received_at: datetime
    body: bytes | None


class PendingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for dispatch; `event` and `payload` are those of an api call."""

    id: RunId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    source: Source
    execution_mode: ExecutionMode
    rule_version_id: RuleVersionId
    rule_version: int
    planned_at: datetime | None
    created_at: datetime
    originator_id: UserId | None
    event: str | None
    payload: bytes | None
    trigger: RunTrigger | None
    delivery: RunDelivery | None


class RuleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rule version with what is looked at anew at dispatch; `read_at` is the database's clock."""

    rule: Rule
    creator_id: UserId
    rule_owner: Candidate
    attribution_policy: AttributionPolicy
    executor: Executor
    project_id: ProjectId | None
    issue_prefix: str
    subscribers: list[UserId]
    read_at: datetime


class NewIssue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue to be inserted."""

    id: IssueId
    workspace_id: WorkspaceId
    number: int
    title: str
    body: str
    assignee_type: AssigneeType
    assignee_id: UUID
    creator_id: AgentId
    project_id: ProjectId | None
    autopilot_id: AutopilotId
    run_id: RunId


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task to be queued; `expires_in_s` None waits for ever."""

    id: TaskId
    workspace_id: WorkspaceId
    agent_id: AgentId
    issue_id: IssueId | None
    run_id: RunId
    autopilot_id: AutopilotId
    accountable_id: UserId
    prompt: str
    max_attempts: int
    expires_in_s: float | None


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A person who follows a new issue, and the inbox item that tells them."""

    item_id: UUID
    workspace_id: WorkspaceId
    issue_id: IssueId
    user_id: UserId
    autopilot_id: AutopilotId
    run_id: RunId
    title: str


async def load_runs(conn: Conn, ids: Collection[RunId]) -> dict[RunId, PendingRun]:
    """Those of the runs that are pending."""
    rows = await conn.fetch(SQL["load_runs"], list(ids))
    return {
        row["id"]: PendingRun(
            id=row["id"],
            workspace_id=row["workspace_id"],
            autopilot_id=row["autopilot_id"],
            source=Source(row["source"]),
            execution_mode=ExecutionMode(row["execution_mode"]),
            rule_version_id=row["rule_version_id"],
            rule_version=row["rule_version"],
            planned_at=row["planned_at"],
            created_at=row["created_at"],
            originator_id=row["originator_id"],
            event=row["event"],
            payload=row["payload"],
            trigger=_trigger_of(row),
            delivery=_delivery_of(row),
        )
        for row in rows
    }


async def load_rules(conn: Conn, ids: Collection[RuleVersionId]) -> dict[RuleVersionId, RuleFacts]:
    """The facts by rule version."""
    rows = await conn.fetch(SQL["load_rules"], list(ids))
    return {
        row["rule_version_id"]: RuleFacts(
            rule=msgspec.convert(row["rule"], Rule),
            creator_id=row["creator_id"],
            rule_owner=Candidate(user_id=row["rule_owner_id"], present=row["rule_owner_present"]),
            attribution_policy=AttributionPolicy(row["attribution_policy"]),
            executor=executor_of(row),
            project_id=row["project_id"],
            issue_prefix=row["issue_prefix"],
            subscribers=list(row["subscribers"]),
            read_at=row["read_at"],
        )
        for row in rows
    }


async def load_shares(conn: Conn, pairs: Collection[tuple[AgentId, UserId]]) -> set[tuple[AgentId, UserId]]:
    """Those of the (agent, person) pairs where the agent is shared with the person."""
    rows = await conn.fetch(SQL["load_shares"], [agent for agent, _ in pairs], [user for _, user in pairs])
    return {(row["agent_id"], row["user_id"]) for row in rows}


async def lock_projects(conn: Conn, ids: Collection[ProjectId]) -> set[ProjectId]:
    """Keep projects from being deleted until this transaction ends; those that exist."""
    return {row["id"] for row in await conn.fetch(SQL["lock_projects"], sorted(ids))}


async def take_issue_numbers(conn: Conn, wanted: Mapping[WorkspaceId, int]) -> dict[WorkspaceId, int]:
    """The first of so many consecutive issue numbers for each workspace; the last lock of a transaction."""
    rows = await conn.fetch(SQL["take_issue_numbers"], list(wanted.keys()), list(wanted.values()))
    return {row["workspace_id"]: row["last_issue_number"] - wanted[row["workspace_id"]] + 1 for row in rows}


async def insert_issues(conn: Conn, issues: Sequence[NewIssue]) -> None:
    """Insert issues in state todo."""
    await conn.execute(SQL["insert_issues"], *_columns(issues, NewIssue))


async def insert_subscribers(conn: Conn, subscriptions: Sequence[NewSubscription]) -> None:
    """Subscribe people to new issues, with reason autopilot, and put a line into their inbox."""
    await conn.execute(SQL["insert_subscribers"], *_columns(subscriptions, NewSubscription))


async def insert_tasks(conn: Conn, tasks: Sequence[NewTask]) -> None:
    """Queue tasks."""
    await conn.execute(SQL["insert_tasks"], *_columns(tasks, NewTask))


def _columns(rows: Sequence[msgspec.Struct], struct: type[msgspec.Struct]) -> list[list[object]]:
    return [[getattr(row, field) for row in rows] for field in struct.__struct_fields__]


def _trigger_of(row: asyncpg.Record) -> RunTrigger | None:
    if row["trigger_id"] is None:
        return None
    publisher = row["trigger_publisher_id"]
    return RunTrigger(
        id=row["trigger_id"],
        kind=TriggerKind(row["trigger_kind"]),
        label=row["trigger_label"],
        timezone=row["trigger_timezone"],
        publisher=Candidate(user_id=publisher, present=row["trigger_publisher_present"])
        if publisher is not None
        else None,
    )


def _delivery_of(row: asyncpg.Record) -> RunDelivery | None:
    if row["delivery_id"] is None:
        return None
    return RunDelivery(
        id=row["delivery_id"],
        provider=row["provider"],
        event=row["delivery_event"],
        content_type=row["content_type"],
        received_at=row["received_at"],
        body=body_of(row),
    )
