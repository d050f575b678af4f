"""Plans of jobs as rows: claimed by lease, kept by heartbeat, finished by token, swept when their runner is gone (S7.3 to S7.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


class Agenda(msgspec.Struct, frozen=True, kw_only=True):
    """The database's time, and when a retry is due or a lease runs out next: later than now, None for never."""

    now: datetime
    next_at: datetime | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's wish to run a plan. `id`, `max_attempts` and `reentry` are for a new row; one that exists keeps its own."""

    id: UUID
    plan: PlanKey
    token: LeaseToken
    runner_id: UUID
    max_attempts: int
    reentry: bool
    stale_after: timedelta


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed plan. `was` is what its row said before: None for a new plan, RUNNING for one that was stolen."""

    id: UUID
    plan: PlanKey
    token: LeaseToken
    attempt: int
    max_attempts: int
    stale_after: timedelta
    was: State | None


class Success(msgspec.Struct, frozen=True, kw_only=True):
    """A good end; `result` is JSON text."""

    lease: Lease
    result: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A bad end. `retry_after` None: never again by itself."""

    lease: Lease
    code: ErrorCode
    message: str
    retry_after: timedelta | None


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


class Stale(msgspec.Struct, frozen=True, kw_only=True):
    """An execution whose runner has not been heard of since its lease ran out."""

    id: UUID
    stale_at: datetime


async def claim(conn: Conn, claims: Sequence[Claim]) -> list[Lease | None]:
    """Take plans; None for one that somebody has, or had and is done, or whose retry is not due."""
    first = {claim.plan: claim for claim in reversed(claims)}  # a statement cannot decide twice about one row
    rows = await conn.fetch(
        SQL["claim"],
        *_columns(first.values(), ("id",)),
        *_plan_columns([claim.plan for claim in first.values()]),
        *_columns(first.values(), ("max_attempts", "reentry", "runner_id", "token", "stale_after")),
    )
    taken = {row["lease_token"]: row for row in rows}
    return [_lease(claim, taken.get(claim.token)) for claim in claims]


async def heartbeat(conn: Conn, leases: Sequence[Lease]) -> list[bool]:
    """Keep leases; False for one that is lost."""
    rows = await conn.fetch(SQL["heartbeat"], *_columns(leases, ("id", "token", "stale_after")))
    return _are_held(leases, rows)


async def succeed(conn: Conn, ends: Sequence[Success]) -> list[bool]:
    """Finish plans well; False for one whose lease is lost, which changes nothing."""
    leases = [end.lease for end in ends]
    rows = await conn.fetch(SQL["succeed"], *_columns(leases, ("id", "token")), [end.result for end in ends])
    return _are_held(leases, rows)


async def fail(conn: Conn, ends: Sequence[Failure]) -> list[FailedExecution | None]:
    """Finish plans badly; None for one whose lease is lost, which changes nothing."""
    rows = await conn.fetch(
        SQL["fail"],
        *_columns([end.lease for end in ends], ("id", "token")),
        [end.code for end in ends],
        [_storable(end.message) for end in ends],
        [end.retry_after for end in ends],
    )
    failed = {row["lease_token"]: _failed(row) for row in rows}
    return [failed.get(end.lease.token) for end in ends]


async def list_stale(conn: Conn, job_name: str, after: Stale | None, limit: int) -> list[Stale]:
    """Executions of a job whose runner has not been heard of in time, longest ago first; looked at without a lock."""
    cursor = (after.stale_at, after.id) if after is not None else (None, None)
    return [Stale(**row) for row in await conn.fetch(SQL["list_stale"], job_name, *cursor, limit)]


async def fail_stale(conn: Conn, execution_ids: Sequence[UUID]) -> list[FailedExecution]:
    """Fail those of these executions that are still stale: not heard of, finished or swept meanwhile."""
    return [_failed(row) for row in await conn.fetch(SQL["fail_stale"], list(execution_ids))]


async def read_agenda(conn: Conn, job_name: str) -> Agenda:
    """What lies ahead of a job."""
    row = await conn.fetchrow(SQL["read_agenda"], job_name)
    assert row is not None
    return Agenda(now=row["now"], next_at=row["next_at"])


async def list_retries(conn: Conn, job_name: str, *, busy: Collection[Scope], limit: int) -> list[PlanKey]:
    """The failed plans of a job whose retry is due, oldest plan first, but for those of busy scopes."""
    rows = await conn.fetch(SQL["list_retries"], job_name, *_columns(busy, ("kind", "id")), limit)
    return [
        PlanKey(
            job_name=job_name, scope=Scope(row["scope_kind"], row["scope_id"]), plan_time=row["plan_time"]
        )
        for row in rows
    ]


async def read_spans(conn: Conn, job_name: str, scopes: Collection[Scope]) -> dict[Scope, Span]:
    """What planning needs to know of each scope."""
    rows = await conn.fetch(SQL["read_spans"], job_name, *_columns(scopes, ("kind", "id")))
    return {
        Scope(row["kind"], row["id"]): Span(now=row["now"], oldest=row["oldest"], newest=row["newest"])
        for row in rows
    }


async def list_plan_times(
    conn: Conn, job_name: str, scopes: Collection[Scope], *, since: datetime
) -> dict[Scope, set[datetime]]:
    """For each scope the plans that have a row, whatever its state, from `since` on."""
    known: dict[Scope, set[datetime]] = {scope: set() for scope in scopes}
    rows = await conn.fetch(SQL["list_plan_times"], job_name, *_columns(scopes, ("kind", "id")), since)
    for row in rows:
        known[Scope(row["scope_kind"], row["scope_id"])].add(row["plan_time"])
    return known


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


def _lease(claim: Claim, row: Any) -> Lease | None:
    if row is None:
        return None
    return Lease(
        id=row["id"],
        plan=claim.plan,
        token=claim.token,
        attempt=row["attempts"],
        max_attempts=row["max_attempts"],
        stale_after=claim.stale_after,
        was=row["was"],
    )


def _are_held(leases: Sequence[Lease], rows: Sequence[Any]) -> list[bool]:
    held = {row["lease_token"] for row in rows}
    return [lease.token in held for lease in leases]


def _storable(message: str) -> str:
    """What a text column takes: no NUL, no half of a surrogate pair, no more than it may hold."""
    return (
        message[:MESSAGE_LIMIT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    )


def _plan_columns(plans: Sequence[PlanKey]) -> list[list[object]]:
    return [
        [plan.job_name for plan in plans],
        [plan.scope.kind for plan in plans],
        [plan.scope.id for plan in plans],
        [plan.plan_time for plan in plans],
    ]


def _columns(rows: Collection[object], names: Sequence[str]) -> list[list[object]]:
    return [[getattr(row, name) for row in rows] for name in names]
