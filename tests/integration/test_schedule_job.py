"""The schedule transaction: a due plan has its run, its execution and its next occurrence, or none of them (S7.8 to S7.12)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import admit_one, assert_coherent, execute, fetch, row
from tests.support.rules import Setting
from tests.support.scheduling import (
    FAR_OFF,
    YEARLY,
    Scheduler,
    due_at,
    due_trigger,
    executions_of,
    make_due,
    runs_of,
)

from autopilot.domain import cron
from autopilot.domain.ids import AutopilotId
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import AutopilotStatus, ExecutionMode, OverlapPolicy
from autopilot.engine import rules as rule_engine
from autopilot.engine import triggers as trigger_engine
from autopilot.kit import points
from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test", max_size=12) as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def test_a_due_plan_gets_run_queue_entry_execution_and_next_occurrence(
    database: Database, setting: Setting
) -> None:
    """S7.8, S7.9"""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    scheduler = Scheduler(database)
    assert await scheduler.step() is True
    [run] = await runs_of(database, trigger_id)
    assert (run["status"], run["source"], run["planned_at"]) == ("pending", "schedule", planned)
    assert (run["accountable_id"], run["attribution_source"]) == (setting.owner_id, "trigger_owner")
    assert len(await fetch(database, "SELECT 1 FROM dispatch_queue WHERE run_id = $1", run["id"])) == 1
    [execution] = await executions_of(database, trigger_id)
    assert (execution["state"], execution["plan_time"], execution["attempts"]) == ("SUCCESS", planned, 1)
    assert (execution["scope_kind"], execution["schedule_rev"]) == ("trigger", 1)
    assert execution["result"] == {"outcome": "admitted", "run_id": str(run["id"])}
    assert await due_at(database, trigger_id) == FAR_OFF
    assert scheduler.wakes == 1
    await assert_coherent(database)


async def test_a_failure_before_the_commit_leaves_nothing_and_the_plan_is_admitted_once_afterwards(
    database: Database, setting: Setting
) -> None:
    """S7.8: no crash can fall between admission, finish and next_run_at."""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    scheduler = Scheduler(database)
    armed = points.armed("scheduler.schedule.before_commit", "raise", error=DatabaseUnavailable())
    with armed as point, pytest.raises(DatabaseUnavailable):
        await scheduler.step()
    assert point.hits == 1
    assert await runs_of(database, trigger_id) == []
    assert await executions_of(database, trigger_id) == []
    assert await due_at(database, trigger_id) == planned
    await scheduler.drain()
    assert [run["planned_at"] for run in await runs_of(database, trigger_id)] == [planned]
    assert [e["attempts"] for e in await executions_of(database, trigger_id)] == [1]


@pytest.mark.parametrize(
    ("fields", "late_s", "status"),
    [
        pytest.param({}, 240, "pending", id="S7.10 4:00 late runs"),
        pytest.param({}, 301, "skipped", id="S7.10 5:01 late is missed"),
        pytest.param({"lateness_s": 3600}, 3500, "pending", id="S7.11 a lateness of its own"),
        pytest.param({"catch_up": CatchUp.NONE}, 10, "pending", id="S7.11 none within a minute"),
        pytest.param({"catch_up": CatchUp.NONE}, 61, "skipped", id="S7.11 none after a minute"),
        pytest.param({"catch_up": CatchUp.ALL}, 7200, "pending", id="S7.11 all has no lateness"),
    ],
)
async def test_lateness_decides_whether_an_occurrence_runs_or_is_recorded_as_missed(
    database: Database, setting: Setting, fields: dict[str, Any], late_s: float, status: str
) -> None:
    """By the real clock, which goes on meanwhile: to the microsecond it is tried on a clock that the test sets."""
    trigger_id = await due_trigger(database, setting, late_s=late_s, **fields)
    await Scheduler(database).drain()
    [run] = await runs_of(database, trigger_id)
    assert run["status"] == status
    [execution] = await executions_of(database, trigger_id)
    if status == "skipped":
        assert (run["reason_code"], run["missed_count"]) == ("schedule_missed", 1)
        assert "too late" in run["failure_reason"]
        assert execution["result"]["outcome"] == "skipped"
        assert execution["result"]["code"] == "schedule_missed"
    assert await due_at(database, trigger_id) == FAR_OFF
    await assert_coherent(database)


async def test_of_many_due_occurrences_only_the_newest_runs_and_the_rest_is_counted(
    database: Database, setting: Setting
) -> None:
    """S7.10"""
    trigger_id = await due_trigger(database, setting, cron="* * * * *", late_s=600)
    await Scheduler(database).drain()
    [run] = await runs_of(database, trigger_id)
    assert run["status"] == "pending"
    [execution] = await executions_of(database, trigger_id)
    assert execution["result"]["missed"] in (9, 10)
    following = await due_at(database, trigger_id)
    assert following is not None
    assert following > run["planned_at"]


async def test_catch_up_all_runs_every_occurrence_once_oldest_first(
    database: Database, setting: Setting
) -> None:
    """S7.11: five plans a tick, until none is left."""
    trigger_id = await due_trigger(
        database, setting, cron="* * * * *", late_s=12 * 60 + 30, catch_up=CatchUp.ALL
    )
    first = await due_at(database, trigger_id)
    scheduler = Scheduler(database)
    assert await scheduler.step() is True
    assert len(await runs_of(database, trigger_id)) == 5
    await scheduler.drain()
    planned = [run["planned_at"] for run in await runs_of(database, trigger_id)]
    assert planned[0] == first
    assert len(planned) in (13, 14)
    assert all(b - a <= timedelta(minutes=1) for a, b in itertools.pairwise(planned))
    assert len(await executions_of(database, trigger_id)) == len(planned)
    assert {run["status"] for run in await runs_of(database, trigger_id)} == {"pending"}


async def test_resuming_gives_the_next_future_occurrence_and_admits_nothing_for_the_pause(
    database: Database, setting: Setting
) -> None:
    """S7.10: a trigger that was paused has missed nothing."""
    autopilot = await rules.make_autopilot(database, setting)
    trigger_id = await due_trigger(
        database, setting, autopilot_id=autopilot.id, cron="* * * * *", late_s=7200
    )
    [before] = await fetch(database, "SELECT clock_timestamp() AS now")
    for status in (AutopilotStatus.PAUSED, AutopilotStatus.ACTIVE):
        edit = rule_engine.AutopilotEdit(status=status)
        async with database.transaction() as conn:
            await rule_engine.update_autopilot(
                conn, setting.workspace_id, autopilot.id, setting.owner_id, edit
            )
        if status is AutopilotStatus.PAUSED:
            assert await due_at(database, trigger_id) is None
            await Scheduler(database).drain()
    following = await due_at(database, trigger_id)
    assert following is not None
    assert following > before["now"]
    await Scheduler(database).drain()
    assert all(run["planned_at"] >= following for run in await runs_of(database, trigger_id))


async def test_a_plan_that_an_edit_overtakes_is_not_written_over(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 8: the scheduler holds the trigger, so that an edit comes before it or after it, never between."""
    autopilot = await rules.make_autopilot(database, setting)
    trigger_id = await due_trigger(database, setting, autopilot_id=autopilot.id)

    async def edit() -> None:
        async with database.transaction() as conn:
            await trigger_engine.update_trigger(
                conn,
                setting.workspace_id,
                autopilot.id,
                trigger_id,
                setting.owner_id,
                trigger_engine.TriggerEdit(cron=f"0 0 2 {FAR_OFF.month} *"),
            )

    with points.armed("scheduler.schedule.before_commit", "block") as point:
        stepping = asyncio.create_task(Scheduler(database).step())
        await point.wait_reached()
        editing = asyncio.create_task(edit())
        await asyncio.wait({editing}, timeout=0.2)
        assert not editing.done()
        point.release()
        await asyncio.gather(stepping, editing)
    assert len(await runs_of(database, trigger_id)) == 1
    assert await due_at(database, trigger_id) == FAR_OFF + timedelta(days=1)


async def test_a_plan_passed_over_for_a_held_edit_is_judged_by_the_edited_rule(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 8: what an edit holds is skipped, and after it is not due any more."""
    trigger_id = await due_trigger(database, setting)
    async with database.transaction() as conn:
        await conn.execute("SELECT 1 FROM autopilot_trigger WHERE id = $1 FOR UPDATE", trigger_id)
        wait = await Scheduler(database).step()
        assert wait is not True
        assert wait is not None
        assert wait < 1
        await conn.execute(
            "UPDATE autopilot_trigger SET next_run_at = NULL, enabled = false, schedule_rev = schedule_rev + 1 WHERE id = $1",
            trigger_id,
        )
    await Scheduler(database).drain()
    assert await runs_of(database, trigger_id) == []


async def test_two_schedulers_share_many_due_triggers_and_double_none(
    database: Database, setting: Setting
) -> None:
    """S1.1, S7.3: 2,000 due at once, each exactly one run, and both have done some."""
    autopilot = await rules.make_autopilot(database, setting)
    trigger = await rules.make_schedule_trigger(database, setting, autopilot.id, YEARLY)
    await execute(
        database,
        """INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone,
                  catch_up, tzdata_version, next_run_at)
           SELECT gen_random_uuid(), workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone, catch_up,
                  tzdata_version, clock_timestamp() - interval '1 second'
             FROM autopilot_trigger, generate_series(1, 2000) WHERE id = $1""",
        trigger.id,
    )
    both = [Scheduler(database, batch=100), Scheduler(database, batch=100)]

    async def work(one: Scheduler) -> None:
        while (wait := await one.step()) is not None and (wait is True or wait < 1):
            pass

    # Neither commits before both have taken some; after that, whoever is given the machine may do more.
    with points.armed("scheduler.schedule.before_commit", "block") as point:
        working = asyncio.gather(*(work(one) for one in both))
        while point.hits < 2 and not working.done():
            await asyncio.sleep(0.01)
        point.release()
        await working
    runs = await fetch(database, "SELECT trigger_id FROM autopilot_run")
    assert Counter(Counter(run["trigger_id"] for run in runs).values()) == {1: 2000}
    executions = await fetch(
        database, "SELECT runner_id, count(*) AS n FROM sys_cron_executions GROUP BY runner_id"
    )
    assert sum(execution["n"] for execution in executions) == 2000
    assert min(execution["n"] for execution in executions) >= 100, "a batch at least"
    assert len(executions) == 2
    assert all(one.wakes for one in both)


@pytest.mark.parametrize("policy", [OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE])
async def test_overlap_holds_under_concurrent_batches(
    database: Database, setting: Setting, policy: OverlapPolicy
) -> None:
    """S3.6, HAZARDS 2: six triggers of one rule due at once, two schedulers, one live run (and one that waits)."""
    autopilot = await rules.make_autopilot(database, setting, overlap_policy=policy)
    for late_s in range(1, 7):
        await due_trigger(database, setting, autopilot_id=autopilot.id, late_s=late_s)

    async def work() -> None:
        one = Scheduler(database, batch=2)
        while (wait := await one.step()) is not None and (wait is True or wait < 1):
            pass

    await asyncio.gather(work(), work())
    assert await _statuses(database, autopilot.id) == (
        {"pending": 1, "skipped": 5} if policy is OverlapPolicy.SKIP else {"pending": 2, "skipped": 4}
    )
    skipped = await fetch(database, "SELECT reason_code FROM autopilot_run WHERE status = 'skipped'")
    assert {run["reason_code"] for run in skipped} == {"already_active"}
    parked = await fetch(database, "SELECT 1 FROM dispatch_deferred WHERE kind = 'parked'")
    assert len(parked) == (policy is OverlapPolicy.QUEUE_ONE)
    await assert_coherent(database)


async def test_a_live_manual_run_makes_a_schedule_skip_but_not_with_allow(
    database: Database, setting: Setting
) -> None:
    """S3.6"""
    for policy, expected in ((OverlapPolicy.SKIP, "skipped"), (OverlapPolicy.ALLOW, "pending")):
        autopilot = await rules.make_autopilot(database, setting, overlap_policy=policy)
        await admit_one(database, autopilot.id)
        trigger_id = await due_trigger(database, setting, autopilot_id=autopilot.id)
        await Scheduler(database).drain()
        [run] = await runs_of(database, trigger_id)
        assert run["status"] == expected, policy


async def test_a_run_only_rule_without_its_runtime_leaves_a_skipped_run_as_a_finished_plan(
    database: Database, setting: Setting
) -> None:
    """S2.3, S3.2"""
    await rules.set_runtime(database, setting.runtime_id, seen_s_ago=120)
    trigger_id = await due_trigger(database, setting, rule={"execution_mode": ExecutionMode.RUN_ONLY})
    scheduler = Scheduler(database)
    await scheduler.drain()
    [run] = await runs_of(database, trigger_id)
    assert (run["status"], run["reason_code"]) == ("skipped", "runtime_offline")
    [execution] = await executions_of(database, trigger_id)
    assert execution["state"] == "SUCCESS"
    assert execution["result"]["code"] == "runtime_offline"
    assert scheduler.wakes == 0


async def test_a_plan_that_has_its_run_reuses_it(database: Database, setting: Setting) -> None:
    """S7.12"""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    await Scheduler(database).drain()
    [before] = await runs_of(database, trigger_id)
    await execute(database, "DELETE FROM sys_cron_executions")
    await execute(
        database, "UPDATE autopilot_trigger SET next_run_at = $2 WHERE id = $1", trigger_id, planned
    )
    await Scheduler(database).drain()
    [after] = await runs_of(database, trigger_id)
    assert after["id"] == before["id"]
    [execution] = await executions_of(database, trigger_id)
    assert execution["result"] == {"outcome": "reused", "run_id": str(before["id"])}


async def test_a_run_that_failed_before_dispatch_gives_its_plan_to_a_clean_one(
    database: Database, setting: Setting
) -> None:
    """S7.12: the record stays for audit."""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    await Scheduler(database).drain()
    [failed] = await runs_of(database, trigger_id)
    await execute(database, "DELETE FROM dispatch_queue")
    await execute(
        database,
        """UPDATE autopilot_run SET status = 'failed', reason_code = 'dispatch_exhausted', failure_reason = 'x',
                  completed_at = clock_timestamp() WHERE id = $1""",
        failed["id"],
    )
    await execute(
        database, "UPDATE autopilot_trigger SET next_run_at = $2 WHERE id = $1", trigger_id, planned
    )
    await Scheduler(database).drain()
    clean, audit = await runs_of(database, trigger_id)
    assert (clean["status"], clean["planned_at"]) == ("pending", planned)
    assert (audit["id"], audit["status"], audit["planned_at"]) == (failed["id"], "failed", None)
    await assert_coherent(database)


async def test_a_corrupt_cron_or_zone_stops_its_trigger_alone_and_says_why(
    database: Database, setting: Setting
) -> None:
    """CASES CR5, HAZARDS 9"""
    good = [await due_trigger(database, setting) for _ in range(3)]
    no_cron, no_zone = await due_trigger(database, setting), await due_trigger(database, setting)
    await execute(database, "UPDATE autopilot_trigger SET cron = 'every day' WHERE id = $1", no_cron)
    await execute(database, "UPDATE autopilot_trigger SET timezone = 'Mars/Olympus' WHERE id = $1", no_zone)
    await Scheduler(database).drain()
    for trigger_id in good:
        assert len(await runs_of(database, trigger_id)) == 1
    for trigger_id, field in ((no_cron, "cron"), (no_zone, "timezone")):
        stopped = await row(database, "autopilot_trigger", trigger_id)
        assert stopped["next_run_at"] is None
        assert stopped["schedule_error"].startswith(f"{field}: ")
        assert await runs_of(database, trigger_id) == []
        assert await executions_of(database, trigger_id) == []
    assert await Scheduler(database).step() is not True
    await assert_coherent(database)


async def test_a_local_time_inside_the_spring_gap_moves_on_by_the_rule_of_the_zone(
    database: Database, setting: Setting
) -> None:
    """S8.3, S8.4: the job and the preview are one implementation."""
    trigger_id = await due_trigger(
        database, setting, cron="30 2 * 3 *", timezone="America/New_York", catch_up=CatchUp.LATEST
    )
    await Scheduler(database).drain()
    following = await due_at(database, trigger_id)
    [now] = await fetch(database, "SELECT clock_timestamp() AS now")
    assert following == cron.next_after(cron.parse("30 2 * 3 *"), cron.zone("America/New_York"), now["now"])


async def test_an_idle_step_says_when_the_next_occurrence_is(database: Database, setting: Setting) -> None:
    """S7.9: the loop sleeps until then, not for a poll interval."""
    assert await Scheduler(database).step() is None
    trigger_id = await due_trigger(database, setting)
    await make_due(database, trigger_id, late_s=-3000)
    wait = await Scheduler(database).step()
    assert wait is not True
    assert wait is not None
    assert 2900 < wait <= 3000


async def _statuses(database: Database, autopilot_id: AutopilotId) -> dict[str, int]:
    rows = await fetch(
        database,
        "SELECT status, count(*) AS n FROM autopilot_run WHERE autopilot_id = $1 GROUP BY status",
        autopilot_id,
    )
    return {row["status"]: row["n"] for row in rows}
