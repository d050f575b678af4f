"""Due schedules: triggers and failed plans locked, their plans recorded, their next occurrence written (S7.8, S7.9).

A plan's execution row is written with its run, in one statement for a batch, so it never stands RUNNING.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, RunId, TriggerId
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import AutopilotStatus, ReasonCode
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("schedules")

JOB_NAME = "autopilot_schedule_dispatch"

Outcome = Literal["admitted", "skipped", "not_due", "reused"]


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until the next occurrence and the next retry, negative when overdue, None when there is none."""

    plan_in_s: float | None
    retry_in_s: float | None


class DueTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that is due, as it stands under its lock; `next_run_at` is its oldest occurrence not settled."""

    id: TriggerId
    autopilot_id: AutopilotId
    cron: str
    timezone: str
    catch_up: CatchUp
    lateness_s: int | None
    next_run_at: datetime
    schedule_rev: int


class DueRetry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed plan whose retry is due, looked at without a lock; both ids are None where its trigger is gone."""

    id: UUID
    trigger_id: TriggerId | None
    autopilot_id: AutopilotId | None


class LockedRetry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed plan under its lock. `missed`: how many occurrences it leaves without a run, itself included if it `was_missed`.

    `current_rev` None: no trigger.
    """

    id: UUID
    trigger_id: TriggerId
    planned_at: datetime
    schedule_rev: int
    current_rev: int | None
    enabled: bool
    status: AutopilotStatus
    missed: int | None
    was_missed: bool


class PlanRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a plan has already. `replaceable`: it failed before it was ever dispatched (S7.12)."""

    id: RunId
    replaceable: bool


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A settled plan for its execution row. `missed`: how many occurrences it leaves without a run, None for none."""

    id: UUID
    trigger_id: TriggerId
    planned_at: datetime
    schedule_rev: int
    outcome: Outcome
    run_id: RunId | None = None
    code: ReasonCode | None = None
    missed: int | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that failed. `was_missed`: it was to be recorded as missed, and so it is when tried again."""

    id: UUID
    trigger_id: TriggerId
    planned_at: datetime
    schedule_rev: int
    missed: int | None = None
    was_missed: bool = False


class FailedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What its row says now; `next_retry_at` None: it is out of attempts."""

    trigger_id: TriggerId
    planned_at: datetime
    attempts: int
    next_retry_at: datetime | None
    missed: int | None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger's next occurrence (None: never), or the error at which it stops."""

    id: TriggerId
    schedule_rev: int
    next_run_at: datetime | None
    error: str | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes executions of plans, and what they may cost: the attempts, and the wait after each."""

    runner_id: UUID
    token: UUID
    max_attempts: int
    backoff: tuple[timedelta, ...]


async def peek(conn: Conn) -> Peek:
    """How long the schedule may be left alone."""
    row = await conn.fetchrow(SQL["peek"], JOB_NAME)
    assert row is not None
    return Peek(plan_in_s=row["plan_in_s"], retry_in_s=row["retry_in_s"])


async def lock_due(conn: Conn, limit: int) -> list[DueTrigger]:
    """Take up to `limit` due triggers, and the rules of those whose policy looks at what is in flight (levels 2 and 3).

    What another transaction holds is passed over: two schedulers share, and neither waits.
    """
    guarded = [row["id"] for row in await conn.fetch(SQL["lock_guarded"], limit)]
    rows = await conn.fetch(SQL["lock_due"], limit, guarded)
    return [msgspec.convert(dict(row), DueTrigger) for row in rows]


async def lock_due_again(conn: Conn, triggers: Sequence[DueTrigger]) -> list[DueTrigger]:
    """Take those of these triggers that are still due; the caller has locked their rules."""
    rows = await conn.fetch(SQL["lock_due_again"], [trigger.id for trigger in triggers])
    return [msgspec.convert(dict(row), DueTrigger) for row in rows]


async def list_retries(conn: Conn, limit: int) -> list[DueRetry]:
    """Failed plans whose retry is due."""
    return [DueRetry(**row) for row in await conn.fetch(SQL["list_retries"], JOB_NAME, limit)]


async def lock_retries(conn: Conn, retries: Sequence[DueRetry]) -> list[LockedRetry]:
    """Take the triggers of these failed plans (level 3), then those plans that are still due (level 4)."""
    trigger_ids = sorted({retry.trigger_id for retry in retries if retry.trigger_id is not None})
    await conn.execute(SQL["lock_triggers"], trigger_ids)
    rows = await conn.fetch(SQL["lock_retries"], [retry.id for retry in retries], trigger_ids)
    return [
        LockedRetry(
            id=row["id"],
            trigger_id=TriggerId(UUID(row["scope_id"])),
            planned_at=row["plan_time"],
            schedule_rev=row["schedule_rev"],
            current_rev=row["current_rev"],
            enabled=row["enabled"],
            status=AutopilotStatus(row["status"]),
            missed=row["missed"],
            was_missed=row["was_missed"],
        )
        for row in rows
    ]


async def find_plan_runs(
    conn: Conn, plans: Sequence[tuple[TriggerId, datetime]]
) -> dict[tuple[TriggerId, datetime], PlanRun]:
    """The runs that exist for these plans."""
    rows = await conn.fetch(SQL["find_plan_runs"], [p[0] for p in plans], [p[1] for p in plans])
    return {
        (row["trigger_id"], row["planned_at"]): PlanRun(id=row["id"], replaceable=row["replaceable"])
        for row in rows
    }


async def free_plans(conn: Conn, run_ids: Sequence[RunId]) -> None:
    """Take their plan from failed runs that were never dispatched."""
    await conn.execute(SQL["free_plans"], list(run_ids))


async def record_finished(conn: Conn, by: Signature, plans: Sequence[Finished]) -> None:
    """Write executions that are settled."""
    await conn.execute(
        SQL["record_finished"],
        *(JOB_NAME, by.max_attempts, by.runner_id, by.token),
        *queries.columns(
            plans,
            ("id", "trigger_id", "planned_at", "schedule_rev", "outcome", "run_id", "code", "missed"),
        ),
    )


async def record_failed(conn: Conn, by: Signature, plans: Sequence[Failed], message: str) -> list[FailedPlan]:
    """Write executions that failed, one attempt further, and say which are tried again and when."""
    rows = await conn.fetch(
        SQL["record_failed"],
        *(JOB_NAME, by.max_attempts, by.runner_id, by.token, list(by.backoff), message),
        *queries.columns(plans, ("id", "trigger_id", "planned_at", "schedule_rev", "missed", "was_missed")),
    )
    return [
        FailedPlan(
            trigger_id=row["trigger_id"],
            planned_at=row["plan_time"],
            attempts=row["attempts"],
            next_retry_at=row["next_retry_at"],
            missed=row["missed"],
        )
        for row in rows
    ]


async def postpone_retry(conn: Conn, execution_id: UUID, delay: timedelta) -> None:
    """Try a failed plan again later, at no cost."""
    await conn.execute(SQL["postpone_retry"], execution_id, delay)


async def advance(conn: Conn, moves: Sequence[Move]) -> None:
    """Move locked triggers on."""
    await conn.execute(
        SQL["advance"], *queries.columns(moves, ("id", "schedule_rev", "next_run_at", "error"))
    )
