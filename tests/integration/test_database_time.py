"""Tests that set the database's clock: what they stand on holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support import rules
from tests.support.database_time import simulated_time
from tests.support.dispatching import fetch
from tests.support.scheduling import Scheduler, due_at, executions_of, runs_of

from autopilot.storage.database import Database

START = datetime(2031, 3, 5, 11, 59, 59, tzinfo=UTC)
NOON = datetime(2031, 3, 5, 12, tzinfo=UTC)


async def test_a_session_sees_the_time_that_is_set_in_statements_and_in_defaults(postgres_url: str) -> None:
    async with (
        simulated_time(postgres_url, START) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
        Database(postgres_url, name="real") as real,
    ):
        setting = await rules.make_setting(database)
        [row] = await fetch(database, "SELECT created_at FROM workspace WHERE id = $1", setting.workspace_id)
        assert row["created_at"] == START
        await time.advance(timedelta(days=1))
        [row] = await fetch(database, "SELECT now() AS a, clock_timestamp() AS b, statement_timestamp() AS c")
        assert set(row.values()) == {START + timedelta(days=1)}
        [row] = await fetch(real, "SELECT now() AS a")
        assert row["a"] != START + timedelta(days=1)


async def test_a_schedule_comes_due_by_that_time_alone(postgres_url: str) -> None:
    async with (
        simulated_time(postgres_url, START) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
    ):
        setting = await rules.make_setting(database)
        autopilot = await rules.make_autopilot(database, setting)
        trigger = await rules.make_schedule_trigger(database, setting, autopilot.id, "0 12 * * *")
        assert await due_at(database, trigger.id) == NOON
        scheduler = Scheduler(database)
        assert await scheduler.step() == 1.0
        await time.set(NOON)
        await scheduler.drain()
        [run] = await runs_of(database, trigger.id)
        assert (run["planned_at"], run["created_at"]) == (NOON, NOON)
        [execution] = await executions_of(database, trigger.id)
        assert execution["finished_at"] == NOON
        assert await due_at(database, trigger.id) == NOON + timedelta(days=1)
