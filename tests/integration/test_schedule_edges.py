"""Catch-up to the second, and what pauses and edits do to it, by a database clock that the test sets (S7.9 to S7.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from tests.support import rules
from tests.support.database_time import DatabaseTime, simulated_time
from tests.support.dispatching import assert_coherent
from tests.support.rules import Setting
from tests.support.scheduling import Scheduler, allow_runs, due_at, executions_of, forbid_runs, runs_of

from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import AutopilotStatus, OverlapPolicy
from autopilot.engine import rules as rule_engine
from autopilot.engine import triggers as trigger_engine
from autopilot.engine.rules import AutopilotEdit
from autopilot.engine.triggers import TriggerEdit
from autopilot.storage.database import Database

MORNING = datetime(2031, 3, 5, 9, tzinfo=UTC)
NOON = datetime(2031, 3, 5, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)


class World:
    """One rule with one schedule in a database whose clock stands at 09:00."""

    def __init__(self, database: Database, time: DatabaseTime, setting: Setting) -> None:
        self.database = database
        self.time = time
        self.setting = setting
        self.scheduler = Scheduler(database)
        self.autopilot_id: AutopilotId
        self.trigger_id: TriggerId

    async def schedule(self, cron: str = "0 12 * * *", **fields: Any) -> None:
        self.autopilot_id = (await rules.make_autopilot(self.database, self.setting)).id
        trigger = await rules.make_schedule_trigger(
            self.database, self.setting, self.autopilot_id, cron, **fields
        )
        self.trigger_id = trigger.id

    async def at(self, instant: datetime) -> list[asyncpg.Record]:
        """The runs after the scheduler has had its turn at that time."""
        await self.time.set(instant)
        async with asyncio.timeout(30):
            await self.scheduler.drain()
        return await self.runs()

    async def runs(self) -> list[asyncpg.Record]:
        return await runs_of(self.database, self.trigger_id)

    async def next_run_at(self) -> datetime | None:
        return await due_at(self.database, self.trigger_id)

    async def edit(self, **fields: Any) -> None:
        async with self.database.transaction() as conn:
            await trigger_engine.update_trigger(
                conn,
                self.setting.workspace_id,
                self.autopilot_id,
                self.trigger_id,
                self.setting.owner_id,
                TriggerEdit(**fields),
            )

    async def edit_rule(self, **fields: Any) -> None:
        async with self.database.transaction() as conn:
            await rule_engine.update_autopilot(
                conn,
                self.setting.workspace_id,
                self.autopilot_id,
                self.setting.owner_id,
                AutopilotEdit(**fields),
            )


@asynccontextmanager
async def _world(postgres_url: str) -> AsyncIterator[World]:
    async with (
        simulated_time(postgres_url, MORNING) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
    ):
        yield World(database, time, await rules.make_setting(database))


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    async with _world(postgres_url) as made:
        yield made
        await assert_coherent(made.database)


@pytest.mark.parametrize(
    ("fields", "late", "status"),
    [
        pytest.param({}, timedelta(minutes=4, seconds=59), "pending", id="S7.10 4:59 late runs"),
        pytest.param({}, timedelta(minutes=5), "pending", id="S7.10 5:00 late runs"),
        pytest.param({}, timedelta(minutes=5) + MICROSECOND, "skipped", id="S7.10 beyond 5:00 is missed"),
        pytest.param({}, timedelta(minutes=5, seconds=1), "skipped", id="S7.10 5:01 late is missed"),
        pytest.param({"lateness_s": 1}, timedelta(seconds=1), "pending", id="S7.11 1 s at its limit"),
        pytest.param({"lateness_s": 1}, timedelta(seconds=2), "skipped", id="S7.11 1 s past its limit"),
        pytest.param({"lateness_s": 7200}, timedelta(hours=2), "pending", id="S7.11 2 h at its limit"),
        pytest.param(
            {"lateness_s": 7200}, timedelta(hours=2, seconds=1), "skipped", id="S7.11 2 h past its limit"
        ),
        pytest.param({"catch_up": CatchUp.NONE}, MINUTE, "pending", id="S7.11 none, 60 s"),
        pytest.param({"catch_up": CatchUp.NONE}, MINUTE + MICROSECOND, "skipped", id="S7.11 none, beyond"),
        pytest.param({"catch_up": CatchUp.ALL}, DAY - MICROSECOND, "pending", id="S7.11 all, in its window"),
    ],
)
async def test_an_occurrence_runs_up_to_its_limit_and_is_missed_beyond(
    world: World, fields: dict[str, Any], late: timedelta, status: str
) -> None:
    """S7.10, S7.11, CASES CU2"""
    await world.schedule(**fields)
    assert await world.at(NOON - MICROSECOND) == []
    [run] = await world.at(NOON + late)
    assert (run["status"], run["planned_at"], run["created_at"]) == (status, NOON, NOON + late)
    assert run["reason_code"] == ("schedule_missed" if status == "skipped" else None)
    assert run["missed_count"] == (1 if status == "skipped" else None)
    assert await world.next_run_at() == NOON + DAY
    assert await world.at(NOON + late) == [run], "and not again"


async def test_all_leaves_what_is_older_than_its_window_as_missed(world: World) -> None:
    """S7.11: exactly a day old still runs."""
    await world.schedule(catch_up=CatchUp.ALL)
    first, second = await world.at(NOON + DAY)
    assert [run["status"] for run in (first, second)] == ["pending", "pending"]
    await world.at(NOON + 2 * DAY)
    runs = await world.at(NOON + 4 * DAY + MICROSECOND)
    assert [(run["status"], run["planned_at"]) for run in runs[3:]] == [
        ("skipped", NOON + 3 * DAY),
        ("pending", NOON + 4 * DAY),
    ]


async def test_a_run_says_how_many_older_occurrences_it_stands_for(world: World) -> None:
    """S7.10, S2.3: also when it comes by a retry, and when it fails for good."""
    await world.schedule("* * * * *", lateness_s=86_400)
    first = await world.next_run_at()
    assert first is not None
    [run] = await world.at(first + 10 * MINUTE)
    assert (run["status"], run["planned_at"], run["missed_count"]) == ("pending", first + 10 * MINUTE, 10)
    [_, run] = await world.at(first + 11 * MINUTE)
    assert run["missed_count"] is None
    await forbid_runs(world.database, world.trigger_id)
    await world.at(first + 15 * MINUTE)
    await allow_runs(world.database)
    runs = await world.at(first + 16 * MINUTE)
    assert [(run["planned_at"] - first) / MINUTE for run in runs] == [10, 11, 15, 16]
    assert [run["missed_count"] for run in runs] == [10, None, 3, None]
    executions = await executions_of(world.database, world.trigger_id)
    assert [execution["result"].get("missed") for execution in executions] == [10, None, 3, None]
    await forbid_runs(world.database, world.trigger_id)
    for minutes in (18, 19, 24):
        runs = await world.at(first + minutes * MINUTE)
    failed = [run for run in runs if run["status"] == "failed"]
    assert [(run["planned_at"], run["missed_count"]) for run in failed] == [(first + 18 * MINUTE, 1)]


@pytest.mark.parametrize("what", ["rule", "trigger"])
async def test_a_pause_misses_nothing_however_long(world: World, what: str) -> None:
    """S7.10, CASES CU5, CU8: stopped at 09:00, on again at 15:30 the same day, and after twenty years."""
    await world.schedule()
    for on_again in (NOON + timedelta(hours=3, minutes=30), NOON.replace(year=2051) + MINUTE):
        for on in (False, True):
            if on:
                await world.at(on_again)
            if what == "rule":
                await world.edit_rule(status=AutopilotStatus.ACTIVE if on else AutopilotStatus.PAUSED)
            else:
                await world.edit(enabled=on)
            if not on:
                assert await world.next_run_at() is None
        assert await world.at(on_again) == []
        assert await world.next_run_at() == on_again.replace(hour=12, minute=0) + DAY
    [run] = await world.at(NOON.replace(year=2051) + DAY)
    assert (run["status"], run["missed_count"]) == ("pending", None)


@pytest.mark.parametrize(
    ("catch_up", "runs", "missed"),
    [(CatchUp.LATEST, 1, 1000), (CatchUp.NONE, 1, 1000), (CatchUp.ALL, 100, 1000)],
)
async def test_an_outage_of_twenty_years_costs_no_more_than_a_short_one(
    world: World, catch_up: CatchUp, runs: int, missed: int
) -> None:
    """S7.10, S7.11: ten million minutes."""
    await world.schedule("* * * * *", catch_up=catch_up)
    found = await world.at(MORNING.replace(year=2051) + timedelta(seconds=30))
    pending = [run for run in found if run["status"] == "pending"]
    assert len(pending) == runs
    assert max(run["missed_count"] or 0 for run in found) == missed
    assert len({run["planned_at"] for run in found}) == len(found)
    assert await world.next_run_at() == MORNING.replace(year=2051) + MINUTE


async def test_an_edit_of_the_time_gives_the_next_future_occurrence(world: World) -> None:
    """S7.10, CASES DU6: nobody scheduled while noon went by, and one o'clock was meant instead."""
    await world.schedule()
    await world.time.set(NOON + 2 * MINUTE)
    await world.edit(cron="0 13 * * *")
    assert await world.at(NOON + 2 * MINUTE) == []
    await world.edit(cron="1 12 * * *")
    assert await world.at(NOON + 3 * MINUTE) == []
    assert await world.next_run_at() == NOON + DAY + MINUTE


async def test_another_zone_gives_the_next_occurrence_there_and_repeats_none(world: World) -> None:
    """S7.9, CASES CR15, CR14"""
    await world.schedule()
    assert len(await world.at(NOON)) == 1
    await world.edit(timezone="America/New_York")
    assert await world.next_run_at() == NOON + timedelta(hours=5)
    assert len(await world.at(NOON + timedelta(hours=5))) == 2
    await world.edit(timezone="UTC")
    assert await world.next_run_at() == NOON + DAY
    assert len(await world.at(NOON + timedelta(hours=6))) == 2


async def test_a_new_name_or_label_leaves_the_schedule_alone(world: World) -> None:
    """CASES DU6: an occurrence that waits for a scheduler still runs."""
    await world.schedule()
    await world.time.set(NOON + 2 * MINUTE)
    await world.edit_rule(title="Another title", description="Another text")
    await world.edit(label="noon")
    assert await world.next_run_at() == NOON
    [run] = await world.at(NOON + 2 * MINUTE)
    assert (run["status"], run["planned_at"]) == ("pending", NOON)


async def test_another_catch_up_judges_what_is_due_already(world: World) -> None:
    """S7.11"""
    await world.schedule()
    await world.time.set(NOON + 10 * MINUTE)
    await world.edit(lateness_s=3600)
    [run] = await world.at(NOON + 10 * MINUTE)
    assert run["status"] == "pending"


async def test_contradictions_are_refused_from_either_side(world: World) -> None:
    """S7.11, CASES CU13"""
    await world.schedule(catch_up=CatchUp.ALL)
    for policy in (OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE):
        with pytest.raises(InvalidValue, match="catch-up"):
            await world.edit_rule(overlap_policy=policy)
    await world.edit(catch_up=CatchUp.LATEST)
    for policy in (OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE):
        await world.edit_rule(overlap_policy=policy)
        with pytest.raises(InvalidValue, match="contradicts"):
            await world.edit(catch_up=CatchUp.ALL)
    await world.edit_rule(overlap_policy=OverlapPolicy.ALLOW)
    for catch_up in (CatchUp.NONE, CatchUp.ALL):
        with pytest.raises(InvalidValue, match="no meaning"):
            await world.edit(catch_up=catch_up, lateness_s=60)
        await world.edit(catch_up=catch_up)
        with pytest.raises(InvalidValue, match="no meaning"):
            await world.edit(lateness_s=60)


async def test_newer_plans_of_every_minute_strand_no_retry(world: World) -> None:
    """S7.6: four minutes fail, and each is tried again at its own time while the minutes go on."""
    await world.schedule("* * * * *")
    first = await world.next_run_at()
    assert first is not None
    await forbid_runs(world.database, world.trigger_id)
    for seconds in range(0, 240, 20):
        await world.at(first + timedelta(seconds=seconds))
    attempts = [e["attempts"] for e in await executions_of(world.database, world.trigger_id)]
    assert attempts == [2, 2, 2, 1], "a minute after its failure each was tried again"
    await allow_runs(world.database)
    runs: list[asyncpg.Record] = []
    for seconds in range(240, 720, 20):
        runs = await world.at(first + timedelta(seconds=seconds))
    assert [run["planned_at"] for run in runs] == [first + n * MINUTE for n in range(12)]
    assert {run["status"] for run in runs} == {"pending"}
    late = [(run["created_at"] - run["planned_at"]) / MINUTE for run in runs]
    assert late[:5] == [6, 6, 6, 1, 0], "after 1 and after 5 more minutes, at their due time"
    assert [e["attempts"] for e in await executions_of(world.database, world.trigger_id)][:5] == [
        3,
        3,
        3,
        2,
        1,
    ]
