"""Plans that fail stand alone, are tried again at their own time, and never end in silence (S7.6, S7.8, HAZARDS 8, 9, 23)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.support import rules
from tests.support.dispatching import assert_coherent, execute, fetch
from tests.support.rules import Setting
from tests.support.scheduling import (
    Scheduler,
    allow_runs,
    due_at,
    due_trigger,
    executions_of,
    forbid_runs,
    make_due,
    make_retry_due,
    runs_of,
)

from autopilot.domain.states import AutopilotStatus
from autopilot.engine import rules as rule_engine
from autopilot.kit import points
from autopilot.scheduler.rerun import request_rerun
from autopilot.storage import schedules
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention, DatabaseUnavailable
from autopilot.storage.executions import PlanKey, Scope


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def test_a_poisonous_plan_harms_none_of_its_batch_and_is_tried_again_in_a_minute(
    database: Database, setting: Setting
) -> None:
    good = [await due_trigger(database, setting, late_s=n) for n in range(1, 8)]
    bad = await due_trigger(database, setting, late_s=4.5)
    planned = await due_at(database, bad)
    await forbid_runs(database, bad)
    await Scheduler(database).drain()
    for trigger_id in good:
        assert [run["status"] for run in await runs_of(database, trigger_id)] == ["pending"]
    assert await runs_of(database, bad) == []
    [failed] = await executions_of(database, bad)
    assert (failed["state"], failed["error_code"], failed["attempts"]) == ("FAILED", "handler_error", 1)
    assert failed["plan_time"] == planned
    assert failed["next_retry_at"] - failed["finished_at"] == timedelta(minutes=1)
    assert "poison" not in failed["error_message"], "what the database says may quote a row"
    following = await due_at(database, bad)
    assert following is not None
    assert planned is not None
    assert following > planned
    await assert_coherent(database)


async def test_a_retry_runs_at_its_own_plan_time_however_late_and_after_a_newer_plan(
    database: Database, setting: Setting
) -> None:
    """S7.6, S7.11: a newer plan never strands it, and lateness never applies to a retry."""
    trigger_id = await due_trigger(database, setting, late_s=200)
    failed_plan = await due_at(database, trigger_id)
    await forbid_runs(database, trigger_id)
    await Scheduler(database).drain()
    await allow_runs(database)
    await make_due(database, trigger_id)
    newer_plan = await due_at(database, trigger_id)
    await Scheduler(database).drain()
    assert [run["planned_at"] for run in await runs_of(database, trigger_id)] == [newer_plan]
    await execute(
        database,
        """UPDATE sys_cron_executions SET plan_time = plan_time - interval '1 day', next_retry_at = clock_timestamp()
            WHERE state = 'FAILED'""",
    )
    await Scheduler(database).drain()
    retried, newer = await runs_of(database, trigger_id)
    assert failed_plan is not None
    assert (retried["planned_at"], retried["status"]) == (failed_plan - timedelta(days=1), "pending")
    assert newer["planned_at"] == newer_plan
    first, _ = await executions_of(database, trigger_id)
    assert (first["state"], first["attempts"]) == ("SUCCESS", 2)
    assert first["result"] == {"outcome": "admitted", "run_id": str(retried["id"])}
    assert first["error_code"] is None


async def test_a_due_retry_comes_before_a_new_plan(database: Database, setting: Setting) -> None:
    """S7.6"""
    trigger_id = await due_trigger(database, setting, late_s=100)
    await forbid_runs(database, trigger_id)
    await Scheduler(database).drain()
    await allow_runs(database)
    await make_retry_due(database, trigger_id)
    await make_due(database, trigger_id)
    await Scheduler(database).drain()
    older, newer = await fetch(database, "SELECT planned_at FROM autopilot_run ORDER BY created_at, id")
    assert older["planned_at"] < newer["planned_at"]


async def test_a_plan_out_of_attempts_leaves_a_failed_run(database: Database, setting: Setting) -> None:
    """S7.8, HAZARDS 23: 3 attempts, after 1 and 5 minutes."""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    await forbid_runs(database, trigger_id)
    scheduler = Scheduler(database)
    await scheduler.drain()
    await make_retry_due(database, trigger_id)
    await scheduler.drain()
    [second] = await executions_of(database, trigger_id)
    assert second["attempts"] == 2
    assert second["next_retry_at"] - second["finished_at"] == timedelta(minutes=5)
    await make_retry_due(database, trigger_id)
    await scheduler.drain()
    [third] = await executions_of(database, trigger_id)
    assert (third["state"], third["attempts"], third["next_retry_at"]) == ("FAILED", 3, None)
    assert third["id"] == second["id"]
    [run] = await runs_of(database, trigger_id)
    assert (run["status"], run["reason_code"], run["planned_at"]) == ("failed", "internal_error", planned)
    assert run["accountable_id"] == setting.owner_id
    await assert_coherent(database)


async def test_a_rerun_of_an_exhausted_plan_admits_a_clean_run_and_keeps_the_failed_one(
    database: Database, setting: Setting
) -> None:
    """S7.16, S7.12"""
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    assert planned is not None
    await forbid_runs(database, trigger_id)
    for _ in range(3):
        await Scheduler(database).drain()
        await make_retry_due(database, trigger_id)
    await allow_runs(database)
    plan = PlanKey(job_name=schedules.JOB_NAME, scope=Scope("trigger", str(trigger_id)), plan_time=planned)
    told, _ = await request_rerun(database, plan)
    assert told
    await Scheduler(database).drain()
    clean, failed = await runs_of(database, trigger_id)
    assert (clean["status"], clean["planned_at"]) == ("pending", planned)
    assert (failed["status"], failed["planned_at"]) == ("failed", None)
    told, text = await request_rerun(database, plan)
    assert not told
    assert "SUCCESS" in text
    await assert_coherent(database)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        pytest.param([AutopilotStatus.PAUSED], "autopilot_paused", id="paused"),
        pytest.param([AutopilotStatus.ARCHIVED], "autopilot_archived", id="archived"),
        pytest.param([AutopilotStatus.PAUSED, AutopilotStatus.ACTIVE], None, id="paused and resumed"),
    ],
)
async def test_a_retry_whose_schedule_changed_meanwhile_ends_not_due_without_a_run(
    database: Database, setting: Setting, statuses: list[AutopilotStatus], code: str | None
) -> None:
    """S7.8, HAZARDS 8"""
    autopilot = await rules.make_autopilot(database, setting)
    trigger_id = await due_trigger(database, setting, autopilot_id=autopilot.id)
    await forbid_runs(database, trigger_id)
    await Scheduler(database).drain()
    await allow_runs(database)
    for status in statuses:
        edit = rule_engine.AutopilotEdit(status=status)
        async with database.transaction() as conn:
            await rule_engine.update_autopilot(
                conn, setting.workspace_id, autopilot.id, setting.owner_id, edit
            )
    await make_retry_due(database, trigger_id)
    await Scheduler(database).drain()
    [execution] = await executions_of(database, trigger_id)
    assert execution["state"] == "SUCCESS"
    assert execution["result"] == {"outcome": "not_due"} | ({"code": code} if code else {})
    assert await runs_of(database, trigger_id) == []
    await assert_coherent(database)


async def test_a_missed_plan_that_could_not_be_recorded_is_still_missed_when_tried_again(
    database: Database, setting: Setting
) -> None:
    trigger_id = await due_trigger(database, setting, late_s=3600)
    await forbid_runs(database, trigger_id)
    await Scheduler(database).drain()
    await allow_runs(database)
    await make_retry_due(database, trigger_id)
    await Scheduler(database).drain()
    [run] = await runs_of(database, trigger_id)
    assert (run["status"], run["reason_code"], run["missed_count"]) == ("skipped", "schedule_missed", 1)


async def test_infrastructure_errors_cost_a_plan_nothing(database: Database, setting: Setting) -> None:
    trigger_id = await due_trigger(database, setting)
    planned = await due_at(database, trigger_id)
    scheduler = Scheduler(database)
    with (
        points.armed("scheduler.schedule.before_commit", "raise", error=DatabaseUnavailable()),
        pytest.raises(DatabaseUnavailable),
    ):
        await scheduler.step()
    with points.armed("scheduler.schedule.before_commit", "raise", error=Contention()):
        assert await scheduler.step() is None
    assert await executions_of(database, trigger_id) == []
    assert await due_at(database, trigger_id) == planned


async def test_a_failure_that_cannot_be_written_leaves_its_plan_due_and_the_others_done(
    database: Database, setting: Setting
) -> None:
    good, bad = await due_trigger(database, setting), await due_trigger(database, setting)
    planned = await due_at(database, bad)
    await forbid_runs(database, bad)
    await execute(
        database,
        f"""ALTER TABLE sys_cron_executions ADD CONSTRAINT poison CHECK (scope_id <> '{bad}')""",
    )
    scheduler = Scheduler(database)
    await scheduler.drain()
    assert len(await runs_of(database, good)) == 1
    assert await due_at(database, bad) == planned
    await execute(database, "ALTER TABLE sys_cron_executions DROP CONSTRAINT poison")
    await allow_runs(database)
    await scheduler.drain()
    assert len(await runs_of(database, bad)) == 1


async def test_an_end_that_cannot_be_written_is_owed_and_written_later(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 23"""
    trigger_id = await due_trigger(database, setting)
    await forbid_runs(database, trigger_id)
    scheduler = Scheduler(database)
    for _ in range(2):
        await scheduler.drain()
        await make_retry_due(database, trigger_id)
    await execute(
        database,
        "ALTER TABLE autopilot_run ADD CONSTRAINT poison CHECK (reason_code <> 'internal_error')",
    )
    await scheduler.drain()
    [owed] = await executions_of(database, trigger_id)
    assert (owed["state"], owed["attempts"]) == ("FAILED", 2)
    assert owed["next_retry_at"] is not None
    await execute(database, "ALTER TABLE autopilot_run DROP CONSTRAINT poison")
    await make_retry_due(database, trigger_id)
    await scheduler.drain()
    [run] = await runs_of(database, trigger_id)
    assert run["status"] == "failed"
    [final] = await executions_of(database, trigger_id)
    assert (final["attempts"], final["next_retry_at"]) == (3, None)
