"""One plan, many runners: one winner, a lease that can be lost, an end by token (S7.3 to S7.5, CASES LE1 to LE3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.dispatching import execute, fetch

from autopilot.domain.ids import LeaseToken
from autopilot.kit import points
from autopilot.kit.clock import FakeClock
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.spec import EVERYWHERE, JobRun, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Conn, Database
from autopilot.storage.executions import Claim, FailedExecution, Failure, Lease, PlanKey, Success

PLAN = datetime(2026, 1, 1, tzinfo=UTC)
KEY = PlanKey(job_name="work", scope=EVERYWHERE, plan_time=PLAN)
STALE = timedelta(minutes=5)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test", max_size=12) as opened:
        yield opened


class Handler:
    """Counts its runs; waits when told to, until it is let go or cancelled."""

    def __init__(self, result: dict[str, Any] | None = None, *, error: Exception | None = None) -> None:
        self.runs: list[JobRun] = []
        self.cancelled = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self._result = result
        self._error = error

    async def __call__(self, run: JobRun) -> dict[str, Any] | None:
        self.runs.append(run)
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return self._result


def spec(handler: Handler, **fields: Any) -> JobSpec:
    given: dict[str, Any] = {"name": "work", "handler": handler, "cadence": timedelta(minutes=1), **fields}
    return JobSpec(**given)


async def execution(database: Database) -> asyncpg.Record:
    [row] = await fetch(database, "SELECT * FROM sys_cron_executions")
    return row


async def claim(
    database: Database, *, reentry: bool = True, max_attempts: int = 3, stale_after: timedelta = STALE
) -> Lease | None:
    async with database.connection() as conn:
        [lease] = await executions.claim(conn, [a_claim(KEY, reentry, max_attempts, stale_after)])
    return lease


def a_claim(
    plan: PlanKey, reentry: bool = True, max_attempts: int = 3, stale_after: timedelta = STALE
) -> Claim:
    return Claim(
        id=uuid7(),
        plan=plan,
        token=LeaseToken(random_token()),
        runner_id=random_token(),
        max_attempts=max_attempts,
        reentry=reentry,
        stale_after=stale_after,
    )


async def test_of_many_runners_one_wins_a_plan(database: Database) -> None:
    """S7.3"""
    leases = await asyncio.gather(*(claim(database) for _ in range(10)))
    won = [lease for lease in leases if lease is not None]
    assert len(won) == 1
    row = await execution(database)
    assert (row["id"], row["lease_token"], row["attempts"], row["state"]) == (
        won[0].id,
        won[0].token,
        1,
        "RUNNING",
    )
    assert row["stale_at"] - row["heartbeat_at"] == STALE
    assert await claim(database) is None


async def test_a_stale_plan_is_taken_over_and_its_old_runner_changes_nothing(database: Database) -> None:
    """S7.3, S7.4, CASES LE1"""
    old = await claim(database, stale_after=timedelta(0))
    leases = await asyncio.gather(*(claim(database) for _ in range(10)))
    [new] = [lease for lease in leases if lease is not None]
    assert old is not None
    assert (new.id, new.attempt, new.was) == (old.id, 2, "RUNNING")
    assert new.token != old.token
    async with database.connection() as conn:
        assert await executions.heartbeat(conn, [old, new]) == [False, True]
        assert await executions.succeed(conn, [Success(lease=old, result='{"by": "old"}')]) == [False]
        failure = Failure(lease=old, code="handler_error", message="x", retry_after=None)
        assert await executions.fail(conn, [failure]) == [None]
        assert (await execution(database))["state"] == "RUNNING"
        assert await executions.succeed(conn, [Success(lease=new, result='{"by": "new"}')]) == [True]
    row = await execution(database)
    assert (row["state"], row["result"]) == ("SUCCESS", {"by": "new"})
    assert await claim(database) is None


@pytest.mark.parametrize(
    ("reentry", "max_attempts"),
    [pytest.param(False, 3, id="no re-entry"), pytest.param(True, 1, id="no attempts left")],
)
async def test_a_stale_plan_is_left_alone_without_reentry_or_attempts(
    database: Database, reentry: bool, max_attempts: int
) -> None:
    """S7.3"""
    await claim(database, reentry=reentry, max_attempts=max_attempts, stale_after=timedelta(0))
    assert await claim(database) is None


async def test_a_failed_plan_is_taken_again_only_when_its_retry_is_due(database: Database) -> None:
    """S7.3"""
    handler = Handler(error=RuntimeError("boom"))
    claimant = Claimant(database)
    job = spec(handler, max_attempts=2)
    assert await claimant.attempt(job, EVERYWHERE, PLAN)
    row = await execution(database)
    assert (row["state"], row["error_code"]) == ("FAILED", "handler_error")
    waits = row["next_retry_at"] - row["finished_at"]
    assert timedelta(seconds=59) < waits < timedelta(seconds=61)
    assert not await claimant.attempt(job, EVERYWHERE, PLAN)
    await execute(database, "UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()")
    assert await claimant.attempt(job, EVERYWHERE, PLAN)
    again = await execution(database)
    assert (again["id"], again["attempts"], again["next_retry_at"]) == (row["id"], 2, None)
    assert [run.attempt for run in handler.runs] == [1, 2]
    assert not await claimant.attempt(job, EVERYWHERE, PLAN)


async def test_a_result_is_kept_and_one_too_large_is_replaced_by_a_note(database: Database) -> None:
    """S7.4"""
    await Claimant(database).attempt(spec(Handler({"done": 3})), EVERYWHERE, PLAN)
    await Claimant(database).attempt(spec(Handler({"x": "y" * 20_000})), EVERYWHERE, PLAN + STALE)
    kept, cut = await fetch(database, "SELECT state, result FROM sys_cron_executions ORDER BY plan_time")
    assert (kept["state"], kept["result"]) == ("SUCCESS", {"done": 3})
    assert cut["state"] == "SUCCESS"
    assert "16 KiB" in cut["result"]["omitted"]


async def test_heartbeats_extend_the_lease_while_the_handler_runs(database: Database) -> None:
    """S7.4"""
    handler, clock = Handler(), FakeClock()
    handler.go.clear()
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(spec(handler), EVERYWHERE, PLAN))
    await handler.begun.wait()
    before = (await execution(database))["stale_at"]
    await clock.advance(30)
    await _until(database, f"stale_at > '{before}'")
    handler.go.set()
    assert await running
    assert (await execution(database))["state"] == "SUCCESS"


async def test_a_lost_lease_stops_the_handler(database: Database) -> None:
    """S7.4: zero rows = lost; the new owner's row is not touched."""
    handler, clock = Handler(), FakeClock()
    handler.go.clear()
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(spec(handler), EVERYWHERE, PLAN))
    await handler.begun.wait()
    await execute(database, "UPDATE sys_cron_executions SET lease_token = gen_random_uuid(), attempts = 2")
    await clock.advance(30)
    await running
    assert handler.cancelled == 1
    row = await execution(database)
    assert (row["state"], row["attempts"]) == ("RUNNING", 2)


async def test_a_handler_that_takes_too_long_is_cancelled_and_fails_run_timeout(database: Database) -> None:
    """S7.4; without re-entry nobody begins it again (S7.5)."""
    handler, clock = Handler(), FakeClock()
    handler.go.clear()
    job = spec(handler, max_attempts=3, run_timeout=timedelta(seconds=10))
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(job, EVERYWHERE, PLAN))
    await handler.begun.wait()
    await clock.advance(10)
    await running
    assert handler.cancelled == 1
    row = await execution(database)
    assert (row["state"], row["error_code"], row["next_retry_at"]) == ("FAILED", "run_timeout", None)


async def test_a_handler_that_will_not_be_cancelled_is_left_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4, S7.7: its plan ends and its scope is free, whatever it goes on doing."""
    monkeypatch.setattr("autopilot.scheduler.claims.CANCEL_GRACE_S", 0.01)
    clock, begun, go, ended = FakeClock(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(_run: JobRun) -> None:
        begun.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
        ended.set()

    job = JobSpec(name="work", handler=stubborn, cadence=STALE, run_timeout=timedelta(seconds=10))
    running = asyncio.create_task(Claimant(database, clock=clock).attempt(job, EVERYWHERE, PLAN))
    await begun.wait()
    await clock.advance(10)
    assert await running
    row = await execution(database)
    assert (row["state"], row["error_code"]) == ("FAILED", "run_timeout")
    assert not ended.is_set()
    go.set()
    await ended.wait()


async def test_a_stop_cancels_the_handler_and_hands_the_plan_back_at_once(database: Database) -> None:
    """S15, CASES K81"""
    handler = Handler()
    handler.go.clear()
    job = spec(handler, max_attempts=2, stale_reentry=True)
    running = asyncio.create_task(Claimant(database).attempt(job, EVERYWHERE, PLAN))
    await handler.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    row = await execution(database)
    assert (row["state"], row["error_code"]) == ("FAILED", "cancelled")
    handler.go.set()
    assert await Claimant(database).attempt(job, EVERYWHERE, PLAN)


async def test_the_sweep_fails_what_is_stale_and_only_reentry_makes_it_due(database: Database) -> None:
    """S7.5"""
    for reentry in (True, False):
        await execute(database, "DELETE FROM sys_cron_executions")
        await claim(database, reentry=reentry, stale_after=timedelta(0))
        await Claimant(database).sweep(spec(Handler()))
        row = await execution(database)
        assert (row["state"], row["error_code"]) == ("FAILED", "stale_timeout")
        assert (row["next_retry_at"] is not None) is reentry
        assert (await claim(database) is not None) is reentry


async def test_the_sweep_leaves_live_leases_and_other_jobs_alone(database: Database) -> None:
    await claim(database)
    await Claimant(database).sweep(spec(Handler()))
    assert (await execution(database))["state"] == "RUNNING"
    await execute(database, "UPDATE sys_cron_executions SET stale_at = clock_timestamp(), job_name = 'other'")
    await Claimant(database).sweep(spec(Handler()))
    assert (await execution(database))["state"] == "RUNNING"


class Exhausted:
    """An on_exhausted that leaves a mark in the transaction it is called in."""

    def __init__(self) -> None:
        self.told: list[FailedExecution] = []
        self.error: Exception | None = None

    async def __call__(self, conn: Conn, failed: FailedExecution) -> None:
        self.told.append(failed)
        await conn.execute("UPDATE sys_cron_executions SET error_message = 'told' WHERE id = $1", failed.id)
        if self.error is not None:
            raise self.error


async def test_the_end_of_a_plan_is_told_in_its_own_transaction_by_finish_and_by_sweep(
    database: Database,
) -> None:
    """HAZARDS 23"""
    told = Exhausted()
    job = spec(Handler(error=RuntimeError("boom")), max_attempts=2, on_exhausted=told, stale_reentry=True)
    await Claimant(database).attempt(job, EVERYWHERE, PLAN)
    assert told.told == []
    await execute(database, "UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()")
    await Claimant(database).attempt(job, EVERYWHERE, PLAN)
    assert [failed.attempts for failed in told.told] == [2]
    assert (await execution(database))["error_message"] == "told"
    await execute(database, "DELETE FROM sys_cron_executions")
    await claim(database, max_attempts=1, stale_after=timedelta(0))
    await Claimant(database).sweep(job)
    assert [failed.error_code for failed in told.told] == ["handler_error", "stale_timeout"]
    assert (await execution(database))["error_message"] == "told"


async def test_an_end_that_cannot_be_told_is_owed_until_a_later_sweep(database: Database) -> None:
    """HAZARDS 23"""
    told = Exhausted()
    job = spec(Handler(), on_exhausted=told)
    await claim(database, max_attempts=1, stale_after=timedelta(0))
    told.error = RuntimeError("not now")
    await Claimant(database).sweep(job)
    assert (await execution(database))["state"] == "RUNNING"
    told.error = None
    await Claimant(database).sweep(job)
    assert (await execution(database))["state"] == "FAILED"


async def test_a_runner_that_stood_still_past_its_lease_finishes_nothing(database: Database) -> None:
    """CASES LE1: stopped before its finish while another took the plan and did it."""
    slow, quick = Handler({"by": "slow"}), Handler({"by": "quick"})
    with points.armed("scheduler.before_finish", "block", on_hit=1) as point:
        standing = asyncio.create_task(
            Claimant(database).attempt(spec(slow, max_attempts=2, stale_reentry=True), EVERYWHERE, PLAN)
        )
        await point.wait_reached()
        await execute(database, "UPDATE sys_cron_executions SET stale_at = clock_timestamp()")
        assert await Claimant(database).attempt(
            spec(quick, max_attempts=2, stale_reentry=True), EVERYWHERE, PLAN
        )
        point.release()
        await standing
    row = await execution(database)
    assert (row["state"], row["result"], row["attempts"]) == ("SUCCESS", {"by": "quick"}, 2)


async def test_identities_of_runners_are_random(database: Database) -> None:
    """S7.3"""
    assert Claimant(database).runner_id != Claimant(database).runner_id


async def _until(database: Database, condition: str) -> None:
    """Wait for what another task of this process writes next."""
    async with asyncio.timeout(30):
        while not await fetch(database, f"SELECT 1 FROM sys_cron_executions WHERE {condition}"):
            await asyncio.sleep(0)
