"""Runs counted by rule and hour, each hour exactly once, whatever outages there were (S7.6, S7.13)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.support import rules
from tests.support.database_time import simulated_time
from tests.support.dispatching import execute, fetch
from tests.support.history import end_run
from tests.support.rules import Setting

from autopilot.domain.ids import AutopilotId
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.jobs.statistics import HOUR, count_hour, statistics_job
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import Registry
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    """One whose clock stands still: no hour begins while a test counts those before it."""
    async with (
        simulated_time(postgres_url, datetime(2027, 3, 1, 12, 20, tzinfo=UTC)) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as opened,
    ):
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


@pytest.fixture
async def rule(database: Database, setting: Setting) -> AutopilotId:
    return (await rules.make_autopilot(database, setting)).id


async def this_hour(database: Database) -> datetime:
    [found] = await fetch(database, "SELECT date_trunc('hour', clock_timestamp()) AS hour")
    hour: datetime = found["hour"]
    return hour


async def end_at(
    database: Database, rule: AutopilotId, status: str, at: datetime, source: str = "api"
) -> None:
    run_id = await end_run(database, rule, status, source=source)
    await execute(
        database,
        """UPDATE autopilot_run SET created_at = $2, completed_at = $2, started_at = CASE WHEN started_at IS NOT NULL THEN $2::timestamptz END
            WHERE id = $1""",
        *(run_id, at),
    )


async def counted(database: Database) -> dict[tuple[AutopilotId, datetime], tuple[int, int, int]]:
    rows = await fetch(
        database, "SELECT autopilot_id, hour, completed, failed, skipped FROM run_stats_hourly"
    )
    return {(r["autopilot_id"], r["hour"]): (r["completed"], r["failed"], r["skipped"]) for r in rows}


async def plans(database: Database) -> list[tuple[datetime, str]]:
    rows = await fetch(
        database, "SELECT plan_time, state FROM sys_cron_executions ORDER BY started_at, plan_time"
    )
    return [(r["plan_time"], r["state"]) for r in rows]


async def test_an_hour_holds_what_ended_in_it_by_rule_and_outcome(
    database: Database, setting: Setting, rule: AutopilotId
) -> None:
    """S7.13: from its first microsecond up to the next hour's, manual runs included."""
    other = (await rules.make_autopilot(database, setting)).id
    hour = await this_hour(database) - 5 * HOUR
    last = hour + HOUR - timedelta(microseconds=1)
    for status, at in [("completed", hour), ("failed", hour), ("failed", last), ("skipped", last)]:
        await end_at(database, rule, status, at)
    await end_at(database, rule, "completed", last, source="manual")
    await end_at(database, rule, "completed", hour + HOUR)
    await end_at(database, other, "skipped", hour)
    await rules.make_autopilot(database, setting)
    assert await count_hour(database, hour) == {"before": 0, "hour": 2}
    assert await counted(database) == {(rule, hour): (2, 2, 1), (other, hour): (0, 0, 1)}


async def test_an_hour_counted_again_stays_and_what_was_committed_late_is_made_up_for(
    database: Database, rule: AutopilotId
) -> None:
    """HAZARDS 24: the plan after recomputes the hour before."""
    hour = await this_hour(database) - 5 * HOUR
    await end_at(database, rule, "completed", hour)
    await count_hour(database, hour)
    assert await count_hour(database, hour) == {"before": 0, "hour": 0}
    await end_at(database, rule, "failed", hour)
    assert await count_hour(database, hour + HOUR) == {"before": 1, "hour": 0}
    assert await counted(database) == {(rule, hour): (1, 1, 0)}


async def test_hours_missed_in_an_outage_are_counted_later_oldest_first_exactly_once(
    database: Database, rule: AutopilotId
) -> None:
    """S7.6, S7.13: two schedulers, an outage of 30 hours, of which 24 are made up for in one tick."""
    hour = await this_hour(database)
    for back in range(1, 40):
        await end_at(database, rule, "completed", hour - back * HOUR)
    spec = Registry().register(statistics_job(database))
    async with (
        RunningJob(spec, Claimant(database), database) as one,
        RunningJob(spec, Claimant(database), database) as two,
    ):
        await one.tick()
        await one.idle()
        [(newest, state)] = await plans(database)
        assert state == "SUCCESS"
        first = newest - 30 * HOUR
        await execute(
            database,
            "UPDATE sys_cron_executions SET plan_time = $1, started_at = started_at - interval '30 hours'",
            first,
        )
        await execute(database, "DELETE FROM run_stats_hourly")
        await one.tick()
        await one.idle()
        caught_up = await plans(database)
        assert caught_up == [(first + n * HOUR, "SUCCESS") for n in range(25)]
        for _ in range(2):
            await one.tick()
            await two.tick()
            await one.idle()
            await two.idle()
    assert await plans(database) == [(first + n * HOUR, "SUCCESS") for n in range(31)]
    hours = await counted(database)
    assert {hour for _, hour in hours} == {newest - n * HOUR for n in range(1, 32)}
    assert set(hours.values()) == {(1, 0, 0)}


async def test_an_hour_is_counted_five_minutes_after_its_end_and_up_to_30_days_later(
    postgres_url: str,
) -> None:
    """S7.13: what ended in it has been committed by then."""
    noon = datetime(2027, 3, 1, 12, tzinfo=UTC)
    early = noon + timedelta(minutes=4, seconds=59)
    async with (
        simulated_time(postgres_url, early) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
    ):
        spec = Registry().register(statistics_job(database))
        async with RunningJob(spec, Claimant(database), database) as job:

            async def planned() -> list[datetime]:
                await job.tick()
                await job.idle()
                return [plan_time for plan_time, _ in await plans(database)]

            assert await planned() == [noon - HOUR]
            await time.advance(timedelta(seconds=1))
            assert await planned() == [noon - HOUR, noon]
            await time.advance(timedelta(days=40))
            oldest = noon + timedelta(days=10) + HOUR
            assert await planned() == [noon - HOUR, noon, *(oldest + n * HOUR for n in range(24))]
