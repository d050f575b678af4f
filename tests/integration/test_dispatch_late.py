"""After an outage of the dispatcher alone, of a schedule's late runs only the newest is dispatched (S10.6, HAZARDS 10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import admit, assert_coherent, drain, execute, fetch, firing, note_plan, worker
from tests.support.rules import Setting

from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.domain.states import ExecutionMode, OverlapPolicy, Source
from autopilot.kit import points
from autopilot.storage.database import Database

LATE = (50, 40, 30, 20)  # minutes ago


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def make_schedule(
    database: Database, setting: Setting, overlap: OverlapPolicy = OverlapPolicy.ALLOW, **columns: Any
) -> tuple[AutopilotId, TriggerId]:
    autopilot = await rules.make_autopilot(
        database, setting, execution_mode=ExecutionMode.RUN_ONLY, overlap_policy=overlap
    )
    trigger = await rules.make_schedule_trigger(database, setting, autopilot.id)
    for column, value in columns.items():
        await execute(
            database, f"UPDATE autopilot_trigger SET {column} = $2 WHERE id = $1", trigger.id, value
        )
    return autopilot.id, trigger.id


async def occur(database: Database, rule: tuple[AutopilotId, TriggerId], *minutes_ago: float) -> None:
    """Occurrences that were admitted in time, and lie in the queue since."""
    [now] = await fetch(database, "SELECT clock_timestamp() AS now")
    instant: datetime = now["now"]
    planned = [instant - timedelta(minutes=ago) for ago in minutes_ago]
    fired = [firing(rule[0], Source.SCHEDULE, trigger_id=rule[1], planned_at=at) for at in planned]
    await admit(database, fired)
    for one in fired:
        await note_plan(database, one)


async def outcomes(database: Database, rule: tuple[AutopilotId, TriggerId]) -> list[str]:
    """What became of the occurrences, oldest first: the reason, or the status."""
    found = await fetch(
        database,
        "SELECT coalesce(reason_code, status) AS came_to FROM autopilot_run WHERE trigger_id = $1 ORDER BY planned_at",
        rule[1],
    )
    return [each["came_to"] for each in found]


MISSED = "schedule_missed"


@pytest.mark.parametrize("late_first", [True, False])
async def test_two_dispatchers_run_only_the_newest_of_the_late(
    database: Database, setting: Setting, late_first: bool
) -> None:
    """HAZARDS 10: each holds two of four, decided before the other has written anything, or after."""
    rule = await make_schedule(database, setting)
    await occur(database, rule, *LATE)
    first, second = (worker(database, dispatch_batch_size=2) for _ in range(2))
    with points.armed("dispatcher.after_claim", "block", on_hit=1) as claimed:
        old = asyncio.create_task(first.step())
        await claimed.wait_reached()
        new = asyncio.create_task(second.step())
        if late_first:
            claimed.release()
            await old
            await new
        else:
            await new
            claimed.release()
            await old
    assert await outcomes(database, rule) == [MISSED, MISSED, MISSED, "running"]
    [told] = await fetch(
        database,
        "SELECT count(*) AS n FROM run_event_outbox WHERE payload ->> 'reason_code' = 'schedule_missed'",
    )
    assert told["n"] == 3
    await assert_coherent(database)


@pytest.mark.parametrize(
    ("columns", "minutes", "expected"),
    [
        ({}, (6, 4, 3), [MISSED, "running", "running"]),
        ({"lateness_s": 3600}, LATE, ["running"] * 4),
        ({"lateness_s": 45 * 60}, LATE, [MISSED, "running", "running", "running"]),
        ({"catch_up": "none"}, (3, 2, 0.5), [MISSED, MISSED, "running"]),
        ({"catch_up": "all"}, LATE, ["running"] * 4),
    ],
    ids=["limit 5 min", "limit 1 h", "limit 45 min", "none", "all"],
)
async def test_late_is_what_the_trigger_says(
    database: Database,
    setting: Setting,
    columns: dict[str, Any],
    minutes: tuple[float, ...],
    expected: list[str],
) -> None:
    """S10.6, S7.11: what is within the limit runs, and policy `all` misses nothing here."""
    rule = await make_schedule(database, setting, **columns)
    await occur(database, rule, *minutes)
    await drain(worker(database))
    assert await outcomes(database, rule) == expected


async def test_the_newest_is_judged_like_any_other_and_other_triggers_do_not_count(
    database: Database, setting: Setting
) -> None:
    """A skipped later one supersedes nothing; one trigger's runs supersede none of another."""
    rule, other = await make_schedule(database, setting), await make_schedule(database, setting)
    await occur(database, rule, 30)
    await occur(database, rule, 20)
    await occur(database, other, 10)
    await execute(
        database,
        """WITH gone AS (DELETE FROM dispatch_queue WHERE trigger_id = $1 AND seq = (SELECT max(seq) FROM dispatch_queue WHERE trigger_id = $1)
                         RETURNING run_id)
           UPDATE autopilot_run r SET status = 'skipped', reason_code = 'runtime_offline', failure_reason = 'x', completed_at = clock_timestamp()
             FROM gone g WHERE r.id = g.run_id""",
        rule[1],
    )
    await drain(worker(database))
    assert await outcomes(database, rule) == ["running", "runtime_offline"]
    assert await outcomes(database, other) == ["running"]


async def test_a_run_that_waited_behind_another_one_is_not_late_for_that(
    database: Database, setting: Setting
) -> None:
    """S3.6: queue_one lets it wait on purpose, and the one that came behind it waits in turn."""
    rule = await make_schedule(database, setting, OverlapPolicy.QUEUE_ONE)
    await occur(database, rule, 30)
    await occur(database, rule, 20)
    await drain(worker(database))
    assert await outcomes(database, rule) == ["running", "pending"]
    await assert_coherent(database)
