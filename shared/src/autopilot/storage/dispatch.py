"""What a batch of claimed runs becomes: runs, issues, tasks, deliveries, numbers and who is told, in one statement (S3, S10.4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec

from autopilot.domain.attribution import Attribution
from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    IssueId,
    LeaseToken,
    ProjectId,
    RunId,
    SquadId,
    TaskId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.prompts import ISSUE_PROMPT_ASKS, ISSUE_PROMPT_BEGINS
from autopilot.domain.states import AssigneeType, ReasonCode, RunStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("dispatch")


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all runs of one rule, source and trigger. With a `code` they are skipped, for `reason`."""

    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    trigger_id: TriggerId | None
    agent_id: AgentId | None
    squad_id: SquadId | None
    attribution: Attribution | None
    code: ReasonCode | None
    reason: str | None
    assignee_type: AssigneeType | None
    assignee_id: UUID | None
    project_id: ProjectId | None
    issue_prefix: str
    followers: list[UserId]


class Work(msgspec.Struct, frozen=True):
    """One claimed run with what it makes; `ruling` is a place in the list of rulings, None for a run that is not pending.

    `title`, `told_title` (as the prompt shows it) and `items` (an inbox item for each follower) belong to an issue.
    """

    seq: int
    run_id: RunId
    attempts: int
    ruling: int | None = None
    task_id: TaskId | None = None
    issue_id: IssueId | None = None
    text: str | None = None
    title: str | None = None
    told_title: str | None = None
    items: Sequence[UUID] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs of a batch came to the same."""

    status: RunStatus
    code: ReasonCode | None
    runs: int


async def lock_projects(conn: Conn, ids: Collection[ProjectId]) -> set[ProjectId]:
    """Keep projects from being deleted until this transaction ends; those that exist."""
    return {row["id"] for row in await conn.fetch(SQL["lock_projects"], sorted(ids))}


async def dispatch(
    conn: Conn,
    token: LeaseToken,
    rulings: Sequence[Ruling],
    works: Sequence[Work],
    *,
    issue_task_attempts: int,
    bare_task_expires_s: float,
) -> list[Outcome]:
    """Let the runs whose entries the lease still holds leave pending, with everything that follows, and count them."""
    rows = await conn.fetch(
        SQL["dispatch"],
        token,
        *_work_columns(works),
        *_ruling_columns(rulings),
        ISSUE_PROMPT_BEGINS,
        ISSUE_PROMPT_ASKS,
        issue_task_attempts,
        bare_task_expires_s,
        [item for work in works for item in work.items],
        [user for ruling in rulings for user in ruling.followers],
    )
    return [
        Outcome(
            status=RunStatus(row["outcome"]),
            code=ReasonCode(row["reason_code"]) if row["reason_code"] is not None else None,
            runs=row["runs"],
        )
        for row in rows
    ]


def _work_columns(works: Sequence[Work]) -> list[list[object]]:
    first_item = 1
    firsts: list[object] = []
    for work in works:
        firsts.append(first_item)
        first_item += len(work.items)
    return [
        [work.seq for work in works],
        [work.run_id for work in works],
        [work.ruling + 1 if work.ruling is not None else None for work in works],
        [work.task_id for work in works],
        [work.issue_id for work in works],
        [work.title for work in works],
        [work.told_title for work in works],
        [work.text for work in works],
        [work.attempts for work in works],
        firsts,
    ]


def _ruling_columns(rulings: Sequence[Ruling]) -> list[list[object]]:
    first_follower = 1
    firsts: list[object] = []
    for ruling in rulings:
        firsts.append(first_follower)
        first_follower += len(ruling.followers)
    return [
        [ruling.workspace_id for ruling in rulings],
        [ruling.autopilot_id for ruling in rulings],
        [ruling.trigger_id for ruling in rulings],
        [ruling.agent_id for ruling in rulings],
        [ruling.squad_id for ruling in rulings],
        [ruling.attribution.accountable if ruling.attribution else None for ruling in rulings],
        [ruling.attribution.source if ruling.attribution else None for ruling in rulings],
        [ruling.code for ruling in rulings],
        [ruling.reason for ruling in rulings],
        [ruling.assignee_type for ruling in rulings],
        [ruling.assignee_id for ruling in rulings],
        [ruling.project_id for ruling in rulings],
        [ruling.issue_prefix for ruling in rulings],
        firsts,
        [len(ruling.followers) for ruling in rulings],
    ]
