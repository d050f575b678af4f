"""Tasks of lost runtimes come back, unclaimed bare tasks expire, each in a transaction of its own (S7.13, S11.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import admit_one, assert_coherent, drain, execute, fetch, row, worker
from tests.support.rules import Setting
from tests.support.scheduling import Scheduler, due_trigger, runs_of

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import wake_dispatch, wake_runtime
from autopilot.domain.ids import RunId
from autopilot.domain.states import ExecutionMode, OverlapPolicy
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.jobs import leases
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import Registry
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


class Wakes(Bus):
    """A bus without NATS that remembers what was said."""

    def __init__(self) -> None:
        super().__init__(None, name="test")
        self.said: list[str] = []

    def wake(self, subject: str) -> None:
        self.said.append(subject)


async def start(database: Database, setting: Setting, **rule: Any) -> RunId:
    """A run whose task waits for its runtime."""
    autopilot = await rules.make_autopilot(database, setting, **rule)
    run_id = await admit_one(database, autopilot.id)
    await drain(worker(database))
    return run_id


async def hold(
    database: Database, run_id: RunId, setting: Setting, *, status: str, left_s: float = -1
) -> None:
    """Give a run's task to the setting's runtime, with a lease that has so many seconds left."""
    await execute(
        database,
        """UPDATE agent_task SET status = $2, claims = claims + 1, runtime_id = $3, claim_id = gen_random_uuid(),
                  lease_token = gen_random_uuid(), claimed_at = clock_timestamp(),
                  lease_until = clock_timestamp() + make_interval(secs => $4),
                  started_at = CASE WHEN $2 = 'running' THEN clock_timestamp() END
            WHERE run_id = $1""",
        *(run_id, status, setting.runtime_id, left_s),
    )


async def task_of(database: Database, run_id: RunId) -> Any:
    [task] = await fetch(database, "SELECT * FROM agent_task WHERE run_id = $1", run_id)
    return task


async def test_a_lost_issue_task_is_queued_again_and_its_runtime_told(
    database: Database, setting: Setting
) -> None:
    """S11.2, S11.3"""
    run_id = await start(database, setting)
    await hold(database, run_id, setting, status="running")
    bus = Wakes()
    assert (await leases.recover_tasks(database, bus))["requeued"] == 1
    task = await task_of(database, run_id)
    assert (task["status"], task["attempt"], task["failure_kind"]) == ("queued", 2, "runtime_lost")
    assert (await row(database, "autopilot_run", run_id))["status"] == "issue_created"
    assert bus.said == [wake_runtime(setting.runtime_id)]
    await assert_coherent(database)


async def test_a_lost_bare_task_fails_its_run(database: Database, setting: Setting) -> None:
    """S11.2: run_only tasks are not retried."""
    run_id = await start(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    await hold(database, run_id, setting, status="running")
    assert (await leases.recover_tasks(database, Wakes()))["failed"] == 1
    run = await row(database, "autopilot_run", run_id)
    assert (run["status"], run["reason_code"], run["failure_reason"]) == (
        "failed",
        "task_failed",
        leases.LOST_TEXT,
    )
    await assert_coherent(database)


async def test_a_claim_that_never_started_goes_back_without_an_attempt(
    database: Database, setting: Setting
) -> None:
    """HAZARDS 14"""
    run_id = await start(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    await hold(database, run_id, setting, status="claimed")
    assert (await leases.recover_tasks(database, Wakes()))["requeued"] == 1
    task = await task_of(database, run_id)
    assert (task["status"], task["attempt"]) == ("queued", 1)


async def test_only_the_tasks_own_lease_decides(database: Database, setting: Setting) -> None:
    """HAZARDS 15: a runtime that sends no heartbeat loses no task whose lease holds."""
    run_id = await start(database, setting)
    await rules.set_runtime(database, setting.runtime_id, seen_s_ago=3600)
    await hold(database, run_id, setting, status="running", left_s=20)
    result = await leases.recover_tasks(database, Wakes())
    assert result == {"requeued": 0, "failed": 0, "expired": 0, "errors": 0}
    assert (await task_of(database, run_id))["status"] == "running"


async def test_a_bare_task_that_nobody_claims_expires_and_an_issues_task_waits_for_ever(
    database: Database, setting: Setting
) -> None:
    """S11.3, S11.6"""
    bare = await start(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    issue = await start(database, setting)
    assert (await task_of(database, issue))["expires_at"] is None
    assert (await leases.recover_tasks(database, Wakes()))["expired"] == 0
    await execute(database, "UPDATE agent_task SET expires_at = clock_timestamp() WHERE run_id = $1", bare)
    assert (await leases.recover_tasks(database, Wakes()))["expired"] == 1
    run = await row(database, "autopilot_run", bare)
    assert (run["status"], run["reason_code"]) == ("failed", "task_expired")
    assert (await task_of(database, issue))["status"] == "queued"
    await assert_coherent(database)


async def test_the_end_of_a_lost_run_lets_the_one_that_waits_go_and_wakes_dispatch(
    database: Database, setting: Setting
) -> None:
    """S3.6, CASES DU8: no orphan blocks a rule for ever."""
    autopilot = await rules.make_autopilot(
        database, setting, execution_mode=ExecutionMode.RUN_ONLY, overlap_policy=OverlapPolicy.QUEUE_ONE
    )
    first = await due_trigger(database, setting, autopilot_id=autopilot.id)
    await Scheduler(database).drain()
    await drain(worker(database))
    second = await due_trigger(database, setting, autopilot_id=autopilot.id)
    await Scheduler(database).drain()
    [lost], [waiting] = await runs_of(database, first), await runs_of(database, second)
    assert (lost["status"], waiting["status"]) == ("running", "pending")
    await hold(database, lost["id"], setting, status="running")
    bus = Wakes()
    await leases.recover_tasks(database, bus)
    assert bus.said == [wake_dispatch]
    assert len(await fetch(database, "SELECT 1 FROM dispatch_queue WHERE run_id = $1", waiting["id"])) == 1
    await assert_coherent(database)


async def test_more_tasks_than_a_batch_are_all_recovered_past_one_that_cannot_be(
    database: Database, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.13: bounded batches, each task in a transaction of its own."""
    monkeypatch.setattr(leases, "BATCH", 2)
    run_ids = [await start(database, setting, execution_mode=ExecutionMode.RUN_ONLY) for _ in range(5)]
    for run_id in run_ids:
        await hold(database, run_id, setting, status="running")
    await execute(
        database,
        f"ALTER TABLE agent_task ADD CONSTRAINT poison CHECK (run_id <> '{run_ids[1]}' OR status = 'running')",
    )
    result = await leases.recover_tasks(database, Wakes())
    assert (result["failed"], result["errors"]) == (4, 1)


async def test_the_job_is_registered_as_it_is_and_records_what_it_did(
    database: Database, setting: Setting
) -> None:
    """S7.13: a real JobSpec."""
    run_id = await start(database, setting)
    await hold(database, run_id, setting, status="running")
    spec = Registry().register(leases.lease_job(database, Wakes()))
    async with RunningJob(spec, Claimant(database), database) as job:
        await job.tick()
        await job.idle()
    [execution] = await fetch(database, "SELECT job_name, state, result FROM sys_cron_executions")
    assert (execution["job_name"], execution["state"]) == ("task_lease_recovery", "SUCCESS")
    assert execution["result"] == {"requeued": 1, "failed": 0, "expired": 0, "errors": 0}
    # A lease of 30 s, the plan after it, the tick after that: within a minute (S11.3).
    assert spec.cadence is not None
    assert 30 + spec.cadence.total_seconds() + job.poll_s * 1.1 < 60
