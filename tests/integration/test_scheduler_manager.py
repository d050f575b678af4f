"""The ticks of jobs: what is due is begun once, retries first, and nothing that hangs or raises delays another (S7.5 to S7.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.database_time import simulated_time
from tests.support.dispatching import execute, fetch

from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.rerun import main
from autopilot.scheduler.spec import EVERYWHERE, CatchUpMode, JobRun, JobSpec
from autopilot.storage.database import Database
from autopilot.storage.executions import Scope

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NOW = datetime(2031, 3, 5, 11, 40, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    """One whose clock stands still: no hour and no day begins between two ticks of a test."""
    async with (
        simulated_time(postgres_url, NOW) as time,
        Database(postgres_url, name="test", max_size=12, settings=time.url_settings) as opened,
    ):
        yield opened


class Work:
    """A handler that notes what it ran, hangs on some scopes and raises on others."""

    def __init__(self, *, hangs: Sequence[str] = (), raises: Sequence[str] = ()) -> None:
        self.ran: list[tuple[str, datetime]] = []
        self.hanging = asyncio.Event()
        self.never = asyncio.Event()
        self._hangs = hangs
        self.raises = raises

    async def __call__(self, run: JobRun) -> None:
        self.ran.append((run.scope.id, run.plan_time))
        if run.scope.id in self._hangs:
            self.hanging.set()
            await self.never.wait()
        if run.scope.id in self.raises:
            raise RuntimeError(run.scope.id)

    @property
    def plans(self) -> list[datetime]:
        return [plan_time for _, plan_time in self.ran]


def job(database: Database, work: Work, **fields: Any) -> RunningJob:
    given: dict[str, Any] = {"name": "work", "handler": work, "cadence": DAY, **fields}
    return RunningJob(JobSpec(**given), Claimant(database), database)


def scopes(*names: str) -> Any:
    async def given() -> list[Scope]:
        return [Scope("thing", name) for name in names]

    return given


async def tick(*jobs: RunningJob) -> None:
    await asyncio.gather(*(one.tick() for one in jobs))
    await asyncio.gather(*(one.idle() for one in jobs))


async def states(database: Database) -> dict[str, str]:
    rows = await fetch(database, "SELECT scope_id, state FROM sys_cron_executions")
    return {row["scope_id"]: row["state"] for row in rows}


async def test_two_schedulers_run_the_newest_plan_once_and_not_again(database: Database) -> None:
    """S7.1, S7.3, S7.6"""
    work = Work()
    both = [job(database, work), job(database, work)]
    await tick(*both)
    await tick(*both)
    [(scope, plan_time)] = work.ran
    [now] = await fetch(database, "SELECT clock_timestamp() AS now")
    assert scope == EVERYWHERE.id
    assert plan_time == now["now"].replace(hour=0, minute=0, second=0, microsecond=0)


async def test_a_schedule_delay_lets_a_plan_be_due_later_and_the_window_ends_it(database: Database) -> None:
    """S7.2"""
    work = Work()
    await tick(job(database, work, schedule_delay=DAY))
    [yesterday] = work.plans
    [now] = await fetch(database, "SELECT clock_timestamp() AS now")
    assert now["now"] - yesterday >= DAY
    work = Work()
    await tick(job(database, work, name="other", cadence=timedelta(days=40_000)))
    assert work.ran == [], "the newest plan was decades ago, the window is a day"


async def test_every_plan_fills_a_hole_oldest_first_within_its_limit(database: Database) -> None:
    """S7.6, HAZARDS 24"""
    work = Work()
    fields: dict[str, Any] = {
        "cadence": timedelta(hours=1),
        "catch_up": CatchUpMode.EVERY_PLAN,
        "max_plans_per_tick": 3,
        "catch_up_window": timedelta(hours=6),
    }
    one = job(database, work, **fields)
    await tick(one)
    [newest] = work.plans
    await execute(
        database,
        "UPDATE sys_cron_executions SET plan_time = plan_time - interval '5 hours', id = gen_random_uuid()",
    )
    await tick(one)
    assert work.plans[1:] == [newest - timedelta(hours=n) for n in (4, 3, 2)]
    await tick(one)
    assert work.plans[4:] == [newest - timedelta(hours=n) for n in (1, 0)]


async def test_a_due_retry_comes_first_at_its_own_plan_time_and_no_newer_plan_strands_it(
    database: Database,
) -> None:
    """S7.6"""
    work = Work(raises=[EVERYWHERE.id])
    one = job(database, work, max_attempts=3)
    await tick(one)
    [today] = work.plans
    await execute(
        database,
        "UPDATE sys_cron_executions SET plan_time = $1, next_retry_at = clock_timestamp() + interval '1 hour'",
        LONG_AGO,
    )
    await tick(one)
    assert work.plans == [today, today], "a retry that is not due lets a new plan by"
    await execute(database, "DELETE FROM sys_cron_executions WHERE plan_time = $1", today)
    await execute(database, "UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()")
    work.raises = ()
    await tick(one)
    assert work.plans[2:] == [LONG_AGO, today]
    assert set((await states(database)).values()) == {"SUCCESS"}


async def test_a_scope_that_hangs_or_raises_delays_no_other_and_is_not_begun_twice(
    database: Database,
) -> None:
    """S7.7, CASES QW8"""
    work = Work(hangs=["b"], raises=["a"])
    one = job(database, work, scopes=scopes("a", "b", "c", "d"))
    async with one:
        await one.tick()
        await work.hanging.wait()
        await _until(database, {"a": "FAILED", "b": "RUNNING", "c": "SUCCESS", "d": "SUCCESS"})
        await one.tick()
        await _until(database, {"a": "FAILED", "b": "RUNNING", "c": "SUCCESS", "d": "SUCCESS"})
        assert sorted(scope for scope, _ in work.ran) == ["a", "b", "c", "d"]
        work.never.set()
    assert (await states(database))["b"] == "SUCCESS"


async def test_a_planner_that_hangs_or_raises_delays_no_other_scope(database: Database) -> None:
    """S7.7"""
    work, never = Work(), asyncio.Event()

    async def plan(scope: Scope, since: datetime, until: datetime) -> list[datetime]:
        assert until - since == DAY
        if scope.id == "raises":
            raise RuntimeError
        if scope.id == "hangs":
            await never.wait()
        return [until - timedelta(hours=1), since]

    one = job(database, work, cadence=None, plans_for_scope=plan, scopes=scopes("hangs", "raises", "good"))
    async with one:
        await one.tick()
        await _until(database, {"good": "SUCCESS"})
        never.set()
        await one.idle()
    assert await states(database) == {"good": "SUCCESS", "hangs": "SUCCESS"}


async def test_a_stale_plan_is_swept_and_run_again_in_one_tick(database: Database) -> None:
    """S7.5"""
    work = Work(raises=[EVERYWHERE.id])
    one = job(database, work, max_attempts=3, stale_reentry=True)
    await tick(one)
    await execute(
        database,
        """UPDATE sys_cron_executions SET state = 'RUNNING', finished_at = NULL, error_code = NULL, next_retry_at = NULL,
                  error_message = NULL, stale_at = clock_timestamp()""",
    )
    work.raises = ()
    await tick(one)
    [row] = await fetch(database, "SELECT state, attempts FROM sys_cron_executions")
    assert (row["state"], row["attempts"]) == ("SUCCESS", 2)


async def test_a_tick_says_when_the_next_plan_or_retry_is_due(postgres_url: str) -> None:
    """S7.6: hourly, with a delay of five minutes; a retry is due a minute after its failure, not at the next poll."""
    work = Work(raises=[EVERYWHERE.id])
    async with (
        simulated_time(postgres_url, NOW) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
    ):
        hourly = {"cadence": timedelta(hours=1), "schedule_delay": timedelta(minutes=5), "max_attempts": 2}
        one = job(database, work, **hourly)
        async with one:
            assert await one.tick() == 25 * 60
            await one.idle()
            assert await one.tick() == 60
            await time.advance(timedelta(minutes=1))
            assert await one.tick() == 24 * 60
            await one.idle()
            await time.set(NOW + timedelta(minutes=25))
            assert await one.tick() == 60 * 60
            await one.idle()
            other = job(database, work, cadence=None, plans_for_scope=never, name="planned")
            assert await other.tick() is None
            await other.idle()
    assert work.plans == [NOW.replace(minute=0)] * 2 + [NOW.replace(hour=12, minute=0)]


async def never(_scope: Scope, _since: datetime, _until: datetime) -> list[datetime]:
    return []


async def test_a_stop_cancels_what_does_not_end_by_itself_and_hands_it_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15"""
    monkeypatch.setattr("autopilot.scheduler.manager.DRAIN_S", 0.01)
    work = Work(hangs=[EVERYWHERE.id])
    async with job(database, work, stale_reentry=True, max_attempts=2) as one:
        await one.tick()
        await work.hanging.wait()
    [row] = await fetch(database, "SELECT state, error_code, next_retry_at FROM sys_cron_executions")
    assert (row["state"], row["error_code"]) == ("FAILED", "cancelled")
    assert row["next_retry_at"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["job", "kind", "id"],
        ["job", "kind", "id", "yesterday"],
        ["job", "kind", "id", "2026-01-01T00:00:00"],
    ],
)
def test_rerun_refuses_what_names_no_plan(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """S7.16"""
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_rerun_says_that_there_is_no_such_plan(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S7.16"""
    monkeypatch.setenv("AUTOPILOT_DATABASE_URL", postgres_url)
    assert main(["work", "global", "all", "2026-01-01T00:00:00Z"]) == 1
    assert "no such plan" in capsys.readouterr().err


async def _until(database: Database, expected: dict[str, str]) -> None:
    """Wait for what tasks of this process are writing."""
    async with asyncio.timeout(30):
        while await states(database) != expected:
            await asyncio.sleep(0)
