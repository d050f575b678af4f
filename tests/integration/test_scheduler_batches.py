"""Many plans share their statements, and what is wrong with one touches no other (S7.3 to S7.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.dispatching import execute, fetch

from autopilot.domain.errors import AutopilotError
from autopilot.domain.ids import LeaseToken
from autopilot.kit.clock import FakeClock
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.ledger import Ledger
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import EVERYWHERE, CatchUpMode, JobRun, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import DatabaseUnavailable
from autopilot.storage.executions import Claim, FailedExecution, Lease, PlanKey, Scope

PLAN = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test", max_size=8) as opened:
        yield opened


@pytest.fixture
async def impatient(postgres_url: str) -> AsyncIterator[Database]:
    """The same database, but nothing waits for a lock for long."""
    async with Database(postgres_url, name="test", max_size=8, settings={"lock_timeout": "300"}) as opened:
        yield opened


def scopes(count: int) -> Any:
    async def given() -> list[Scope]:
        return [Scope("thing", str(number)) for number in range(count)]

    return given


async def nothing(_run: JobRun) -> None:
    return None


def job(database: Database, claimant: Claimant | None = None, **fields: Any) -> RunningJob:
    given: dict[str, Any] = {"name": "work", "handler": nothing, "cadence": DAY, **fields}
    return RunningJob(JobSpec(**given), claimant or Claimant(database), database)


async def tick(*jobs: RunningJob) -> None:
    await asyncio.gather(*(one.tick() for one in jobs))
    await asyncio.gather(*(one.idle() for one in jobs))


async def states(database: Database) -> dict[str, str]:
    rows = await fetch(database, "SELECT scope_id, state FROM sys_cron_executions")
    return {row["scope_id"]: row["state"] for row in rows}


def a_claim(scope_id: str, token: LeaseToken | None = None) -> Claim:
    return Claim(
        id=uuid7(),
        plan=PlanKey(job_name="work", scope=Scope("thing", scope_id), plan_time=PLAN),
        token=token or LeaseToken(random_token()),
        runner_id=random_token(),
        max_attempts=3,
        reentry=True,
        stale_after=timedelta(minutes=5),
    )


async def test_a_thousand_scopes_are_run_once_by_two_schedulers_in_few_transactions(
    database: Database,
) -> None:
    """S7.3"""
    ran: list[str] = []

    async def note(run: JobRun) -> dict[str, str]:
        ran.append(run.scope.id)
        return {"scope": run.scope.id}

    async def commits() -> int:
        async with database.connection() as conn:
            await conn.execute("SELECT pg_stat_force_next_flush()")
            sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            return int(await conn.fetchval(sql))

    before = await commits()
    await tick(*(job(database, handler=note, scopes=scopes(1000)) for _ in range(2)))
    assert await commits() - before < 400
    assert sorted(ran, key=int) == [str(number) for number in range(1000)]
    rows = await fetch(database, "SELECT scope_id, state, attempts, result FROM sys_cron_executions")
    assert {(row["state"], row["attempts"]) for row in rows} == {("SUCCESS", 1)}
    assert all(row["result"] == {"scope": row["scope_id"]} for row in rows)


async def test_of_two_claims_of_a_plan_in_one_statement_one_wins(database: Database) -> None:
    """S7.3"""
    claims = [a_claim("a"), a_claim("b"), a_claim("a")]
    async with database.connection() as conn:
        leases = await executions.claim(conn, claims)
        assert [lease is not None for lease in leases] == [True, True, False]
        again = await executions.claim(conn, claims)
    assert again[0] is not None
    assert (again[0].id, again[0].attempt) == (claims[0].id, 1), "a claim whose answer was lost finds itself"
    assert again[2] is None


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param({"text": "\0"}, "cannot be stored", id="NUL"),
        pytest.param({"text": object()}, "no JSON", id="not JSON"),
        pytest.param({"text": "\ud800"}, "no JSON", id="half a character"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_its_plan_alone(
    database: Database, bad: dict[str, Any], says: str
) -> None:
    """S7.4, S7.7"""

    async def handle(run: JobRun) -> dict[str, Any]:
        return bad if run.scope.id == "7" else {"good": True}

    await tick(job(database, handler=handle, scopes=scopes(20)))
    rows = await fetch(
        database, "SELECT scope_id, error_message FROM sys_cron_executions WHERE state = 'FAILED'"
    )
    assert [row["scope_id"] for row in rows] == ["7"]
    assert says in rows[0]["error_message"]
    assert list((await states(database)).values()).count("SUCCESS") == 19


async def test_a_message_of_any_text_is_kept_up_to_its_limit(database: Database) -> None:
    """S7.4"""

    async def handle(_run: JobRun) -> None:
        raise AutopilotError("\0\ud800" + "x" * 5000)

    await tick(job(database, handler=handle))
    [row] = await fetch(database, "SELECT error_message FROM sys_cron_executions")
    assert row["error_message"] == "\N{REPLACEMENT CHARACTER}?" + "x" * 3998


async def test_a_row_that_somebody_holds_delays_its_own_scope_alone(
    database: Database, impatient: Database
) -> None:
    """S7.7: a retry of one scope is locked while thirty are claimed with it."""

    async def fail(_run: JobRun) -> None:
        raise RuntimeError

    await tick(job(database, handler=fail, scopes=scopes(30), max_attempts=2))
    await execute(database, "UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()")
    async with database.transaction() as conn:
        await conn.execute("SELECT 1 FROM sys_cron_executions WHERE scope_id = '3' FOR UPDATE")
        await tick(job(impatient, scopes=scopes(30), max_attempts=2))
        found = await states(database)
    assert found.pop("3") == "FAILED"
    assert set(found.values()) == {"SUCCESS"}
    await tick(job(database, scopes=scopes(30), max_attempts=2))
    assert (await states(database))["3"] == "SUCCESS"


async def test_an_end_that_cannot_be_told_holds_up_no_other_end(database: Database) -> None:
    """S7.7, HAZARDS 23: in the batch that fails, and in the sweep."""
    told: list[str] = []

    async def tell(_conn: Conn, failed: FailedExecution) -> None:
        if failed.plan.scope.id == "3":
            raise RuntimeError
        told.append(failed.plan.scope.id)

    async def fail(_run: JobRun) -> None:
        raise RuntimeError

    one = job(database, handler=fail, scopes=scopes(10), on_exhausted=tell)
    await tick(one)
    found = await states(database)
    assert found.pop("3") == "RUNNING"
    assert set(found.values()) == {"FAILED"}
    await execute(
        database,
        """UPDATE sys_cron_executions SET state = 'RUNNING', finished_at = NULL, error_code = NULL, error_message = NULL,
                  stale_at = clock_timestamp()""",
    )
    told.clear()
    await tick(one)
    assert set(told) == set("012456789"), "more than once where a transaction was given up"
    assert (await states(database))["3"] == "RUNNING"


async def test_the_sweep_gets_past_a_page_of_ends_that_cannot_be_written(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.5, S7.7"""
    monkeypatch.setattr("autopilot.scheduler.claims.SWEEP_LIMIT", 4)

    async def tell(_conn: Conn, failed: FailedExecution) -> None:
        if int(failed.plan.scope.id) < 4:
            raise RuntimeError

    async with database.connection() as conn:
        await executions.claim(conn, [a_claim(str(number)) for number in range(9)])
    await execute(
        database,
        "UPDATE sys_cron_executions SET attempts = 3, stale_at = clock_timestamp() - make_interval(secs => 99 - scope_id::int)",
    )
    spec = JobSpec(name="work", handler=nothing, cadence=DAY, on_exhausted=tell)
    await Claimant(database).sweep(spec)
    found = await states(database)
    assert {scope for scope, state in found.items() if state == "FAILED"} == set("45678")


async def test_a_stop_during_a_claim_hands_the_plan_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15, CASES K81: the statement is on its way when the process is told to stop."""
    on_its_way, go, real_claim = asyncio.Event(), asyncio.Event(), executions.claim

    async def claim(conn: Conn, claims: Sequence[Claim]) -> list[Lease | None]:
        leases = await real_claim(conn, claims)
        on_its_way.set()
        await go.wait()
        return leases

    monkeypatch.setattr(executions, "claim", claim)
    spec = JobSpec(name="work", handler=nothing, cadence=DAY, stale_reentry=True, max_attempts=2)
    claiming = asyncio.create_task(Claimant(database).attempt(spec, EVERYWHERE, PLAN))
    await on_its_way.wait()
    claiming.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    [row] = await fetch(database, "SELECT state, error_code, next_retry_at FROM sys_cron_executions")
    assert (row["state"], row["error_code"]) == ("FAILED", "cancelled")
    assert row["next_retry_at"] is not None


async def test_a_stop_waits_but_seconds_for_a_database_that_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15, S1.3: the plan stays RUNNING and is swept later."""
    clock, begun = FakeClock(), asyncio.Event()

    async def handle(_run: JobRun) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def away(*_args: object) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(Ledger, "fail", away)
    spec = JobSpec(name="work", handler=handle, cadence=DAY)
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(spec, EVERYWHERE, PLAN))
    await begun.wait()
    running.cancel()
    while not running.done():
        await clock.advance(0.5)
    assert running.cancelled()
    assert clock.monotonic() < 15
    assert await states(database) == {EVERYWHERE.id: "RUNNING"}


async def test_retries_are_run_though_the_scopes_cannot_be_told(database: Database) -> None:
    """S7.6, S7.7"""
    fails = True

    async def handle(_run: JobRun) -> None:
        if fails:
            raise RuntimeError

    async def broken() -> Sequence[Scope]:
        raise RuntimeError("no scopes")

    await tick(job(database, handler=handle, max_attempts=2))
    await execute(database, "UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()")
    fails = False
    one = job(database, handler=handle, scopes=broken)
    with pytest.raises(RuntimeError, match="no scopes"):
        await one.tick()
    await one.idle()
    assert await states(database) == {EVERYWHERE.id: "SUCCESS"}


async def test_retries_of_a_scope_that_hangs_do_not_stand_in_front_of_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.7"""
    monkeypatch.setattr("autopilot.scheduler.manager.RETRY_LIMIT", 2)
    never, hanging = asyncio.Event(), asyncio.Event()

    async def handle(run: JobRun) -> None:
        if run.scope.id == "hangs":
            hanging.set()
            await never.wait()

    async def none() -> Sequence[Scope]:
        return []

    late = [a_claim("hangs"), a_claim("hangs"), a_claim("hangs"), a_claim("good")]
    async with database.connection() as conn:
        for days, claim in enumerate(late):
            await executions.claim(conn, [claim])
            await conn.execute(
                """UPDATE sys_cron_executions SET plan_time = plan_time + make_interval(days => $2), state = 'FAILED',
                          finished_at = started_at, error_code = 'handler_error', next_retry_at = clock_timestamp()
                    WHERE id = $1""",
                *(claim.id, days + 1),
            )
    one = job(database, handler=handle, scopes=none)
    async with one:
        await one.tick()
        await hanging.wait()
        await one.tick()
        async with asyncio.timeout(30):
            while (await states(database))["good"] != "SUCCESS":
                await asyncio.sleep(0)
        never.set()


async def test_a_planner_can_plan_nothing_that_is_not_due(database: Database) -> None:
    """S7.2, S7.6: neither the future nor what lies before the window."""

    async def plan(scope: Scope, since: datetime, until: datetime) -> list[datetime]:
        return [since, until + timedelta(seconds=1)] if scope.id == "0" else [until]

    await tick(job(database, cadence=None, plans_for_scope=plan, scopes=scopes(2)))
    assert await states(database) == {"1": "SUCCESS"}


async def test_a_planner_whose_plans_all_count_has_each_run_once_oldest_first(database: Database) -> None:
    """S7.2, S7.6: uneven plans, two a tick; a hole between them is filled."""
    ran: list[datetime] = []
    [row] = await fetch(database, "SELECT clock_timestamp() AS now")
    until: datetime = row["now"]

    async def plan(_scope: Scope, _since: datetime, _until: datetime) -> list[datetime]:
        return [until - timedelta(hours=hours) for hours in (2, 9, 0, 3, 7)]

    async def note(run: JobRun) -> None:
        ran.append(run.plan_time)

    one = job(
        database,
        handler=note,
        cadence=None,
        plans_for_scope=plan,
        catch_up=CatchUpMode.EVERY_PLAN,
        max_plans_per_tick=2,
    )
    await tick(one)
    assert ran == [until], "a scope begins with its newest plan"
    await execute(database, "UPDATE sys_cron_executions SET plan_time = $1", until - timedelta(hours=9))
    for _ in range(3):
        await tick(one)
    assert [(until - plan_time) // timedelta(hours=1) for plan_time in ran[1:]] == [7, 3, 2, 0]


async def test_a_handler_is_stopped_before_its_lease_may_run_out_while_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4, S1.3: another runner may take the plan after five minutes, so this one ends before."""
    clock, begun, cancelled_at = FakeClock(), asyncio.Event(), 0.0

    async def handle(_run: JobRun) -> None:
        nonlocal cancelled_at
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled_at = clock.monotonic()

    async def away(*_args: object) -> bool:
        raise DatabaseUnavailable

    monkeypatch.setattr(Ledger, "heartbeat", away)
    spec = JobSpec(name="work", handler=handle, cadence=DAY, run_timeout=timedelta(seconds=299))
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(spec, EVERYWHERE, PLAN))
    await begun.wait()
    while not cancelled_at:
        await clock.advance(1)
    assert 200 < cancelled_at < 300 - spec.heartbeat_interval.total_seconds() + 1
    await running
    [row] = await fetch(database, "SELECT state, error_code FROM sys_cron_executions")
    assert (row["state"], row["error_code"]) == ("FAILED", "lease_lost")
