"""What waits, and for how long: gauges that tell without any traffic, and cost little however much waits (S15)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support import rules
from tests.support.dispatching import admit, execute, firing
from tests.support.rules import Setting

from autopilot.storage import backlog
from autopilot.storage.backlog import KINDS, TIMELESS, Kind, Waiting
from autopilot.storage.database import Database

NOTHING = Waiting(0, 0.0)
WHILE_LOOKING_S = 25  # what may pass between a row and its age, on a machine that has more to do


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def measured(database: Database, *, count_to: int = 10_000) -> dict[Kind, Waiting]:
    async with database.connection() as conn:
        return await backlog.measure(conn, count_to=count_to)


async def test_where_nothing_waits_every_kind_says_0(database: Database) -> None:
    """OB3"""
    assert await measured(database) == dict.fromkeys(KINDS, NOTHING)


async def test_the_depth_is_exact_while_little_waits_and_cheap_when_much_does(
    database: Database, setting: Setting
) -> None:
    autopilot = await rules.make_autopilot(database, setting)
    await admit(database, [firing(autopilot.id) for _ in range(30)])
    await execute(
        database,
        """INSERT INTO dispatch_deferred (kind, delivery_id, autopilot_id, available_at, enqueued_at)
           SELECT CASE WHEN i % 4 = 0 THEN 'retry' ELSE 'paced' END, gen_random_uuid(), $1, now(), now() FROM generate_series(1, 40) i""",
        autopilot.id,
    )
    await execute(database, "ANALYZE dispatch_deferred")
    await execute(
        database,
        "INSERT INTO dispatch_queue (delivery_id, autopilot_id, enqueued_at) VALUES (gen_random_uuid(), $1, now() - interval '1 hour')",
        autopilot.id,
    )
    await execute(
        database, "UPDATE dispatch_queue SET enqueued_at = now() - interval '1 minute' WHERE seq = 1"
    )
    exact, rough = await measured(database), await measured(database, count_to=8)
    assert {kind: each.items for kind, each in exact.items() if each.items} == {
        "delivery": 1,
        "run": 30,
        "retry": 10,
        "paced": 30,
    }
    assert exact["run"].oldest_s == pytest.approx(60, abs=WHILE_LOOKING_S)
    assert exact["delivery"].oldest_s == pytest.approx(3600, abs=WHILE_LOOKING_S)
    assert rough["run"].items == 30
    assert rough["retry"].items + rough["paced"].items == 40


async def test_a_due_occurrence_that_nobody_admits_is_late(database: Database, setting: Setting) -> None:
    autopilot = await rules.make_autopilot(database, setting)
    for minutes in (-10, 10):
        await execute(
            database,
            """INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_version_id, cron, timezone, catch_up,
                                              tzdata_version, next_run_at)
               SELECT gen_random_uuid(), workspace_id, id, 'schedule', version_id, '0 0 1 1 *', 'UTC', 'latest', 'x',
                      now() + $2 * interval '1 minute' FROM autopilot WHERE id = $1""",
            autopilot.id,
            minutes,
        )
    late = (await measured(database))["occurrence"]
    assert late.items == 1
    assert late.oldest_s == pytest.approx(600, abs=WHILE_LOOKING_S)


@pytest.mark.parametrize(("heard_s_ago", "oldest_s"), [(1, 60), (3600, 0)], ids=["online", "offline"])
async def test_a_task_is_due_only_while_its_runtime_is_there(
    database: Database, setting: Setting, heard_s_ago: int, oldest_s: int
) -> None:
    """One that waits for its runtime may do so for ever (S11.5), and is no reason to wake anybody."""
    await execute(
        database,
        "UPDATE runtime_heartbeat SET seen_at = now() - $1 * interval '1 second'",
        heard_s_ago,
    )
    await execute(
        database,
        """INSERT INTO agent_task (id, workspace_id, agent_id, run_id, prompt, status, available_at)
           SELECT gen_random_uuid(), workspace_id, id, gen_random_uuid(), 'p', 'queued', now() - interval '1 minute' FROM agent LIMIT 1""",
    )
    task = (await measured(database))["task"]
    assert task.items == 1
    assert task.oldest_s == pytest.approx(oldest_s, abs=WHILE_LOOKING_S)


async def test_events_wait_for_their_number_and_then_for_the_stream(
    database: Database, setting: Setting
) -> None:
    await execute(
        database,
        """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload, occurred_at)
           SELECT gen_random_uuid(), $1, $1, $1, 'run.done', '{}', now() - i * interval '1 minute' FROM generate_series(1, 3) i""",
        setting.workspace_id,
    )
    await execute(
        database,
        """INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
           SELECT $1, i, gen_random_uuid(), $1, gen_random_uuid(), 'run.done', '{}', now() - (10 - i) * interval '1 minute'
             FROM generate_series(1, 5) i""",
        setting.workspace_id,
    )
    await execute(
        database,
        "UPDATE event_head SET last_seq = 5, relayed_seq = 3 WHERE workspace_id = $1",
        setting.workspace_id,
    )
    waits = await measured(database)
    assert waits["event"].items == 3
    assert waits["event"].oldest_s == pytest.approx(60, abs=WHILE_LOOKING_S)
    assert waits["relay"].items == 2
    assert waits["relay"].oldest_s == pytest.approx(360, abs=WHILE_LOOKING_S)


def test_what_is_deferred_has_no_age() -> None:
    """It waits for its time: an alert on it would be one on nothing."""
    assert set(KINDS) > TIMELESS
