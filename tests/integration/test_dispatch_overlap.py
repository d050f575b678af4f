"""The waiter of queue_one: released by whatever ends the run before it, missed at its deadline, never lost (S3.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.support import rules
from tests.support.dispatching import (
    admit,
    assert_coherent,
    drain,
    execute,
    fetch,
    firing,
    note_plan,
    row,
    until_somebody_waits,
    worker,
)
from tests.support.rules import Setting

from autopilot.dispatcher.upkeep import Upkeep
from autopilot.domain.ids import AutopilotId, RunId, TriggerId
from autopilot.domain.states import ExecutionMode, OverlapPolicy, Source
from autopilot.engine.admit import admit_firings
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.storage.database import Conn, Database

PLAN = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def make_rule(database: Database, setting: Setting) -> tuple[AutopilotId, TriggerId]:
    autopilot = await rules.make_autopilot(
        database, setting, execution_mode=ExecutionMode.RUN_ONLY, overlap_policy=OverlapPolicy.QUEUE_ONE
    )
    trigger = await rules.make_schedule_trigger(database, setting, autopilot.id)
    return autopilot.id, trigger.id


async def occur(database: Database, rule: tuple[AutopilotId, TriggerId], minute: int) -> RunId:
    one = firing(rule[0], Source.SCHEDULE, trigger_id=rule[1], planned_at=PLAN + timedelta(minutes=minute))
    await admit(database, [one])
    await note_plan(database, one)
    return one.run_id


async def finish(conn: Conn, run_id: RunId) -> None:
    await conn.execute(
        "UPDATE agent_task SET status = 'completed', finished_at = clock_timestamp() WHERE run_id = $1",
        run_id,
    )
    await conn.execute(
        "UPDATE autopilot_run SET status = 'completed', completed_at = clock_timestamp() WHERE id = $1",
        run_id,
    )


async def parked_runs(database: Database) -> list[RunId]:
    return [
        r["run_id"]
        for r in await fetch(database, "SELECT run_id FROM dispatch_deferred WHERE kind = 'parked'")
    ]


async def test_a_run_skipped_at_dispatch_releases_the_one_behind_it(
    database: Database, setting: Setting
) -> None:
    rule = await make_rule(database, setting)
    first, second = await occur(database, rule, 0), await occur(database, rule, 1)
    assert await parked_runs(database) == [second]
    await rules.set_runtime(database, setting.runtime_id, seen_s_ago=60)
    one = worker(database)
    await one.step()
    assert (await row(database, "autopilot_run", first))["status"] == "skipped"
    assert [e["run_id"] for e in await fetch(database, "SELECT run_id FROM dispatch_queue")] == [second]
    await assert_coherent(database)
    await rules.set_runtime(database, setting.runtime_id)
    await drain(one)
    assert (await row(database, "autopilot_run", second))["status"] == "running"
    await assert_coherent(database)


async def test_a_live_run_keeps_its_waiter_until_it_ends(database: Database, setting: Setting) -> None:
    rule = await make_rule(database, setting)
    first, second = await occur(database, rule, 0), await occur(database, rule, 1)
    await drain(worker(database))
    async with database.transaction() as conn:
        assert await release_parked(conn, await lock_for_finish(conn, [rule[0]])) == []
    async with database.transaction() as conn:
        locked = await lock_for_finish(conn, [rule[0]])
        await finish(conn, first)
        assert await release_parked(conn, locked) == [second]
    await drain(worker(database))
    assert (await row(database, "autopilot_run", second))["status"] == "running"
    await assert_coherent(database)


async def test_only_rules_with_a_policy_or_a_waiter_are_locked(database: Database, setting: Setting) -> None:
    rule = await make_rule(database, setting)
    plain = await rules.make_autopilot(database, setting)
    async with database.transaction() as conn:
        assert await lock_for_finish(conn, [rule[0], plain.id]) == [rule[0]]
    await occur(database, rule, 0)
    await occur(database, rule, 1)
    await execute(database, "UPDATE autopilot SET overlap_policy = 'allow' WHERE id = $1", rule[0])
    async with database.transaction() as conn:
        assert await lock_for_finish(conn, [rule[0]]) == [rule[0]]


async def test_of_many_occurrences_in_one_batch_one_runs_and_one_waits(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 2: what the batch itself has let through counts for what comes behind it."""
    rule = await make_rule(database, setting)
    plans = (PLAN + timedelta(minutes=minute) for minute in range(4))
    batch = [firing(rule[0], Source.SCHEDULE, trigger_id=rule[1], planned_at=plan) for plan in plans]
    outcomes = await admit(database, batch)
    for one in batch:
        await note_plan(database, one)
    assert [outcome.decision.outcome for outcome in outcomes] == ["admit", "park", "skip", "skip"]
    await assert_coherent(database)


async def test_admission_decides_on_the_rule_as_it_is_after_the_wait_for_its_lock(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 2: the rule was paused by whoever held it meanwhile."""
    rule = await make_rule(database, setting)
    one = firing(rule[0], Source.SCHEDULE, trigger_id=rule[1], planned_at=PLAN)
    async with database.transaction() as conn:
        await conn.execute("UPDATE autopilot SET status = 'paused' WHERE id = $1", rule[0])
        await conn.execute("UPDATE autopilot_trigger SET next_run_at = NULL WHERE id = $1", rule[1])
        admitting = asyncio.create_task(admit(database, [one]))
        await until_somebody_waits(database)
    [outcome] = await admitting
    assert (outcome.decision.outcome, outcome.inserted) == ("stop", False)
    await assert_coherent(database)


async def test_a_run_that_parks_while_the_other_finishes_is_released(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 3: admission has decided but not committed when the end of the live run comes."""
    rule = await make_rule(database, setting)
    first = await occur(database, rule, 0)
    await drain(worker(database))
    behind = firing(rule[0], Source.SCHEDULE, trigger_id=rule[1], planned_at=PLAN + timedelta(minutes=1))

    async def end() -> list[RunId]:
        async with database.transaction() as conn:
            locked = await lock_for_finish(conn, [rule[0]])
            await finish(conn, first)
            return await release_parked(conn, locked)

    async with database.transaction() as conn:
        [outcome] = await admit_firings(conn, [behind])
        await note_plan(database, behind)
        assert outcome.decision.outcome == "park"
        ending = asyncio.create_task(end())
        # The end must stand in the queue for the lock before this transaction commits.
        await until_somebody_waits(database)
    assert await ending == [behind.run_id]
    assert await parked_runs(database) == []
    await assert_coherent(database)


async def test_a_run_that_arrives_while_the_other_finishes_is_not_parked(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 3, the other way round: the end holds the lock when the occurrence comes."""
    rule = await make_rule(database, setting)
    first = await occur(database, rule, 0)
    await drain(worker(database))
    async with database.transaction() as conn:
        locked = await lock_for_finish(conn, [rule[0]])
        await finish(conn, first)
        arriving = asyncio.create_task(occur(database, rule, 1))
        await until_somebody_waits(database)
        assert await release_parked(conn, locked) == []
    second = await arriving
    assert await parked_runs(database) == []
    assert [e["run_id"] for e in await fetch(database, "SELECT run_id FROM dispatch_queue")] == [second]


async def test_the_sweep_releases_a_waiter_that_waits_for_nothing(
    database: Database, setting: Setting
) -> None:
    rule = await make_rule(database, setting)
    first, second = await occur(database, rule, 0), await occur(database, rule, 1)
    await drain(worker(database))
    woken: list[bool] = []
    upkeep = Upkeep(database, wake=lambda: woken.append(True))
    await upkeep.sweep_parked()
    assert await parked_runs(database) == [second]
    assert not woken
    async with database.transaction() as conn:  # an end that forgot its waiter
        await finish(conn, first)
    await upkeep.sweep_parked()
    assert woken
    assert await parked_runs(database) == []
    await assert_coherent(database)


async def test_a_waiter_past_its_deadline_is_missed(database: Database, setting: Setting) -> None:
    """HAZARDS 3: constant other runs cannot keep it waiting for ever."""
    rule = await make_rule(database, setting)
    first, second = await occur(database, rule, 0), await occur(database, rule, 1)
    await drain(worker(database))
    await execute(database, "UPDATE dispatch_deferred SET available_at = clock_timestamp() - interval '1 s'")
    await Upkeep(database, wake=lambda: None).sweep_parked()
    run = await row(database, "autopilot_run", second)
    assert (run["status"], run["reason_code"]) == ("skipped", "schedule_missed")
    assert (await row(database, "autopilot_run", first))["status"] == "running"
    await assert_coherent(database)
