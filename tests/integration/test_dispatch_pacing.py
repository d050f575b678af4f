"""Pacing: a trigger's webhook runs get their times within its pace, once, and nobody waits behind them (S10.3, S10.7, HAZARDS 20)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.dispatching import (
    admit_one,
    assert_coherent,
    drain,
    execute,
    fetch,
    receive,
    worker,
)
from tests.support.rules import Setting

from autopilot.dispatcher import worker as dispatch_worker
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.pacing import Flood
from autopilot.dispatcher.upkeep import Upkeep
from autopilot.domain.ids import AutopilotId, RunId, TriggerId
from autopilot.domain.states import ExecutionMode
from autopilot.kit.config import Secret
from autopilot.storage.database import Database

MINUTE = timedelta(minutes=1)
CONFIG = DispatcherConfig(database_url=Secret("postgresql://unused"))


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def make_hook(
    database: Database, setting: Setting, pace: int | None = None
) -> tuple[AutopilotId, TriggerId]:
    autopilot = await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    hook = await rules.make_webhook_trigger(database, setting, autopilot.id)
    await execute(database, "UPDATE autopilot_trigger SET pace_per_min = $2 WHERE id = $1", hook.id, pace)
    return autopilot.id, hook.id


async def giving_times(flood: Flood) -> None:
    while await flood.step():
        pass


async def statuses(database: Database, trigger_id: TriggerId) -> list[str]:
    found = await fetch(
        database, "SELECT status FROM autopilot_run WHERE trigger_id = $1 ORDER BY id", trigger_id
    )
    return [each["status"] for each in found]


async def receive_many(
    database: Database, autopilot_id: AutopilotId, trigger_id: TriggerId, count: int
) -> None:
    """So many deliveries with their runs, in one statement."""
    await execute(
        database,
        """WITH ids AS (SELECT gen_random_uuid() AS run_id, gen_random_uuid() AS delivery_id FROM generate_series(1, $3)),
           deliveries AS (
               INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status, headers,
                      response_status, response_body, run_id)
               SELECT i.delivery_id, a.workspace_id, a.id, $2, 'github', 'push', 'not_required', 'queued', '{}', 200, '{}', i.run_id
                 FROM ids i, autopilot a WHERE a.id = $1),
           runs AS (
               INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id,
                      rule_version, webhook_delivery_id, accountable_id, attribution_source)
               SELECT i.run_id, a.workspace_id, a.id, $2, 'webhook', 'pending', a.execution_mode, a.version_id, a.version, i.delivery_id,
                      a.creator_id, 'rule_owner'
                 FROM ids i, autopilot a WHERE a.id = $1)
           INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) SELECT i.run_id, $1, $2 FROM ids i""",
        *(autopilot_id, trigger_id, count),
    )


@pytest.mark.parametrize("raised", [False, True])
async def test_times_keep_the_pace_and_are_as_early_as_it_allows(database: Database, raised: bool) -> None:
    """S10.7: never more than the pace in any minute, whatever was granted before, nor where the pace was raised meanwhile."""
    draw = random.Random(3)
    for _ in range(40):
        pace, asked = draw.randint(1, 8), draw.randint(1, 20)
        [now] = await fetch(database, "SELECT clock_timestamp() AS now")
        ahead = 90 if raised else 0
        before = [
            now["now"] + timedelta(seconds=draw.uniform(-90, ahead)) for _ in range(draw.randint(0, 12))
        ]
        [answer] = await fetch(
            database,
            "SELECT pace_slots($1, $2, $3) AS slots, clock_timestamp() AS after",
            *(before, pace, asked),
        )
        kept: list[datetime] = answer["slots"]
        new = kept[-asked:]
        assert len(kept) <= max(pace, asked)
        recent = sorted(t for t in before if t > now["now"] - MINUTE)[-pace:]
        given = sorted([*recent, *new])
        assert all(late - early >= MINUTE for early, late in zip(given, given[pace:], strict=False))
        assert all(slot >= now["now"] for slot in new)
        if not raised:
            assert new == sorted(new)
            for slot in new:
                place = given.index(slot)
                assert slot <= answer["after"] or slot == given[place - pace] + MINUTE, (
                    "no later than it must"
                )


async def test_what_is_beyond_the_pace_gets_its_time_at_once_and_is_touched_twice(
    database: Database, setting: Setting
) -> None:
    """S10.3: attempts and claims of what waits are untouched; when its time comes it is not asked for another one."""
    _, hook = await make_hook(database, setting, pace=2)
    await asyncio.gather(*(receive(database, hook, b"{}") for _ in range(7)))
    one = worker(database)
    await drain(one)
    assert sorted(await statuses(database, hook)) == ["pending"] * 5 + ["running"] * 2
    waiting = await fetch(
        database,
        """SELECT kind, claims, attempts, round(extract(epoch FROM available_at - clock_timestamp()) / 60)::int AS minutes
             FROM dispatch_deferred ORDER BY available_at""",
    )
    assert [tuple(each) for each in waiting] == [("paced", 0, 0, minutes) for minutes in (1, 1, 2, 2, 3)]
    await assert_coherent(database)
    await execute(database, "UPDATE dispatch_deferred SET available_at = clock_timestamp()")
    await Upkeep(database, wake=lambda: None).move_due()
    await drain(one)
    assert set(await statuses(database, hook)) == {"running"}
    [moves] = await fetch(database, "SELECT last_value FROM dispatch_deferred_id_seq")
    assert moves["last_value"] == 5
    await assert_coherent(database)


async def test_only_webhook_runs_are_paced(database: Database, setting: Setting) -> None:
    """S10.7"""
    autopilot, hook = await make_hook(database, setting, pace=1)
    await receive(database, hook, b"{}")
    await receive(database, hook, b"{}")
    for _ in range(3):
        await admit_one(database, autopilot)
    await drain(worker(database))
    found = await fetch(
        database,
        "SELECT source, count(*) FILTER (WHERE status = 'running') AS ran FROM autopilot_run GROUP BY 1",
    )
    assert {each["source"]: each["ran"] for each in found} == {"api": 3, "webhook": 1}


async def test_two_dispatchers_keep_one_pace(database: Database, setting: Setting) -> None:
    """S1.1, S10.7: the trigger's own pace, and the default of the setting where it has none."""
    autopilot, hook = await make_hook(database, setting, pace=10)
    other, plain = await make_hook(database, setting)
    await receive_many(database, autopilot, hook, 60)
    await receive_many(database, other, plain, 90)
    flood = Flood(database, CONFIG)
    first, second = (worker(database, flood=flood, dispatch_batch_size=size) for size in (7, 11))
    await asyncio.gather(drain(first), drain(second), giving_times(flood))
    await giving_times(flood)
    assert (await statuses(database, hook)).count("running") == 10
    assert (await statuses(database, plain)).count("running") == 60
    for trigger, pace, waiting in ((hook, 10, 50), (plain, 60, 30)):
        slots = await fetch(
            database,
            "SELECT available_at FROM dispatch_deferred WHERE trigger_id = $1 ORDER BY available_at",
            trigger,
        )
        times = [each["available_at"] for each in slots]
        assert len(times) == waiting
        assert all(later - early >= MINUTE for early, later in zip(times, times[pace:], strict=False))
    await assert_coherent(database)


async def test_a_quiet_trigger_passes_a_flood(database: Database, setting: Setting) -> None:
    """HAZARDS 20: what floods the queue gets its times in pages; who comes behind it waits for a few statements only."""
    noisy_rule, noisy = await make_hook(database, setting)
    _, quiet = await make_hook(database, setting)
    await receive_many(database, noisy_rule, noisy, 6_000)
    behind, _ = await receive(database, quiet, b"{}")
    flood = Flood(database, CONFIG)
    one = worker(database, flood=flood)
    await one.step()  # the front: 60 run, the rest of the batch shows the flood
    assert list(flood.noisy) == [noisy]
    await one.step()
    assert await status_of(database, behind) == "running"
    [left] = await fetch(database, "SELECT count(*) AS rows FROM dispatch_queue")
    assert left["rows"] == 6_000 - 500, "the flood itself was not touched for it"
    pages = 0
    while await flood.step():
        pages += 1
    assert pages == 1
    assert list(flood.noisy) == []
    [told] = await fetch(
        database,
        """SELECT count(*) AS rows, max(claims) AS claims, max(available_at) - min(available_at) AS span,
                  max(available_at) - clock_timestamp() AS last
             FROM dispatch_deferred WHERE kind = 'paced'""",
    )
    assert (told["rows"], told["claims"]) == (6_000 - 60, 0)
    assert told["span"] == timedelta(minutes=(6_000 - 60) // 60 - 1)
    assert not await one.step()
    await assert_coherent(database)


async def test_a_flood_does_not_hold_up_those_of_its_runs_whose_time_has_come(
    database: Database, setting: Setting
) -> None:
    """S10.3: what has its time is dispatched at once, also while the rest of its trigger's runs are still given theirs."""
    autopilot, noisy = await make_hook(database, setting)
    await receive_many(database, autopilot, noisy, 5)
    await execute(database, "UPDATE dispatch_queue SET paced = true")
    await receive_many(database, autopilot, noisy, 5)
    flood = Flood(database, CONFIG)
    flood.note([noisy])
    await drain(worker(database, flood=flood))
    assert (await statuses(database, noisy)).count("running") == 5
    await assert_coherent(database)


async def test_a_claim_that_passes_all_there_is_comes_to_an_end(
    database: Database, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.3: a flood longer than a look ahead is looked through once in a step, not for as long as it lasts."""
    monkeypatch.setattr(dispatch_worker, "LOOK_AHEAD", 10)
    autopilot, noisy = await make_hook(database, setting)
    await receive_many(database, autopilot, noisy, 35)
    flood = Flood(database, CONFIG)
    flood.note([noisy])
    one = worker(database, flood=flood)
    for _ in range(2):
        async with asyncio.timeout(30):
            assert not await one.step()


async def status_of(database: Database, run_id: RunId | UUID) -> str:
    [found] = await fetch(database, "SELECT status FROM autopilot_run WHERE id = $1", run_id)
    return str(found["status"])
