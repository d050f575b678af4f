"""Plans of jobs as rows: claimed by lease, kept by heartbeat, finished by token, swept when their runner is gone (S7.3 to S7.5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from autopilot.domain.ids import LeaseToken
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("executions")

State = Literal["RUNNING", "SUCCESS", "FAILED"]
ErrorCode = Literal["handler_error", "run_timeout", "lease_lost", "stale_timeout", "cancelled"]
MESSAGE_LIMIT = 4000


class Scope(msgspec.Struct, frozen=True):
    """What a plan of a job is for: `("global", "all")`, or one of many, such as one trigger."""

    kind: str
    id: str


class PlanKey(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a plan: there is one row for it, whoever runs it and how often."""

    job_name: str
    scope: Scope
    plan_time: datetime


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed plan. `was` is what its row said before: None for a new plan, RUNNING for one that was stolen."""

    id: UUID
    plan: PlanKey
    token: LeaseToken
    attempt: int
    max_attempts: int
    was: State | None


class FailedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that has just failed; `next_retry_at` None makes it final."""

    id: UUID
    plan: PlanKey
    attempts: int
    max_attempts: int
    next_retry_at: datetime | None
    error_code: str
    error_message: str | None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The database's time with a scope's oldest and newest plan, None where it never had any."""

    now: datetime
    oldest: datetime | None
    newest: datetime | None


async def claim(
    conn: Conn,
    plan: PlanKey,
    *,
    execution_id: UUID,
    token: LeaseToken,
    runner_id: UUID,
    max_attempts: int,
    reentry: bool,
    stale_after: timedelta,
) -> Lease | None:
    """Take a plan, or None where somebody has it, or had it and is done, or its retry is not due.

    `max_attempts` and `reentry` are for a new row; one that exists keeps its own.
    """
    row = await conn.fetchrow(
        SQL["claim"],
        *(execution_id, plan.job_name, plan.scope.kind, plan.scope.id, plan.plan_time),
        *(max_attempts, reentry, runner_id, token, stale_after),
    )
    if row is None:
        return None
    return Lease(
        id=row["id"],
        plan=plan,
        token=token,
        attempt=row["attempts"],
        max_attempts=row["max_attempts"],
        was=row["was"],
    )


async def heartbeat(conn: Conn, lease: Lease, stale_after: timedelta) -> bool:
    """Keep a lease; False where it is lost."""
    return await conn.fetchval(SQL["heartbeat"], lease.id, lease.token, stale_after) is not None


async def succeed(conn: Conn, lease: Lease, result: dict[str, Any] | None) -> bool:
    """Finish a plan well; False where the lease is lost, and then nothing changes."""
    return await conn.fetchval(SQL["succeed"], lease.id, lease.token, result) is not None


async def fail(
    conn: Conn, lease: Lease, code: ErrorCode, message: str, *, retry_after: timedelta | None
) -> FailedExecution | None:
    """Finish a plan badly; None where the lease is lost. `retry_after` None: never again by itself."""
    row = await conn.fetchrow(SQL["fail"], lease.id, lease.token, code, message[:MESSAGE_LIMIT], retry_after)
    return _failed(row) if row is not None else None


async def list_stale(conn: Conn, job_name: str, *, limit: int) -> list[UUID]:
    """Executions of a job whose runner has not been heard of in time; looked at without a lock."""
    return [row["id"] for row in await conn.fetch(SQL["list_stale"], job_name, limit)]


async def fail_stale(conn: Conn, execution_id: UUID) -> FailedExecution | None:
    """Fail a stale execution; None where it was heard of, finished or swept meanwhile."""
    row = await conn.fetchrow(SQL["fail_stale"], execution_id)
    return _failed(row) if row is not None else None


async def list_retries(conn: Conn, job_name: str, *, limit: int) -> list[PlanKey]:
    """The failed plans of a job whose retry is due, oldest plan first."""
    return [
        PlanKey(
            job_name=job_name, scope=Scope(row["scope_kind"], row["scope_id"]), plan_time=row["plan_time"]
        )
        for row in await conn.fetch(SQL["list_retries"], job_name, limit)
    ]


async def read_span(conn: Conn, job_name: str, scope: Scope) -> Span:
    """What planning needs to know of a scope."""
    row = await conn.fetchrow(SQL["read_span"], job_name, scope.kind, scope.id)
    assert row is not None
    return Span(now=row["now"], oldest=row["oldest"], newest=row["newest"])


async def list_plan_times(conn: Conn, job_name: str, scope: Scope, *, since: datetime) -> set[datetime]:
    """The plans of a scope that have a row, whatever its state, from `since` on."""
    rows: Sequence[Any] = await conn.fetch(SQL["list_plan_times"], job_name, scope.kind, scope.id, since)
    return {row["plan_time"] for row in rows}


async def request_rerun(conn: Conn, plan: PlanKey) -> bool:
    """Give a failed plan one more attempt, now; False where there is none that has failed."""
    key = (plan.job_name, plan.scope.kind, plan.scope.id, plan.plan_time)
    return await conn.fetchval(SQL["request_rerun"], *key) is not None


async def find_state(conn: Conn, plan: PlanKey) -> State | None:
    """The state of a plan, None where it has no row."""
    state: State | None = await conn.fetchval(
        SQL["find_state"], plan.job_name, plan.scope.kind, plan.scope.id, plan.plan_time
    )
    return state


def _failed(row: Any) -> FailedExecution:
    scope = Scope(row["scope_kind"], row["scope_id"])
    return FailedExecution(
        id=row["id"],
        plan=PlanKey(job_name=row["job_name"], scope=scope, plan_time=row["plan_time"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        next_retry_at=row["next_retry_at"],
        error_code=row["error_code"],
        error_message=row["error_message"],
    )
