"""Overlap policies at the end of runs, under concurrency: nobody is parked behind a run that is gone (S3.6, HAZARDS 3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from tests.support import rules
from tests.support.dispatching import admit, drain, execute, fetch, firing, until_somebody_waits, worker
from tests.support.rules import Setting

from autopilot.domain.ids import AutopilotId, LeaseToken, RunId, TaskId, TriggerId
from autopilot.domain.states import ExecutionMode, FailureKind, OverlapPolicy, Source
from autopilot.engine import finish
from autopilot.engine.admit import admit_firings
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.storage.database import Conn, Database

PLAN = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    # Waits for locks are what these tests are about: none may be given up because the machine is slow.
    async with Database(postgres_url, name="test", max_size=12, settings={"lock_timeout": "20000"}) as opened:
        yield opened


class Subject:
    """A rule with a schedule, whose occurrences come when told and whose tasks end when told."""

    def __init__(self, database: Database, rule: AutopilotId, trigger: TriggerId) -> None:
        self.database = database
        self.rule = rule
        self.trigger = trigger
        self._minutes = count()

    async def occur(self) -> RunId:
        plan = PLAN + timedelta(minutes=next(self._minutes))
        one = firing(self.rule, Source.SCHEDULE, trigger_id=self.trigger, planned_at=plan)
        await admit(self.database, [one])
        return one.run_id

    async def policy(self, policy: OverlapPolicy) -> None:
        await execute(
            self.database, "UPDATE autopilot SET overlap_policy = $2 WHERE id = $1", self.rule, policy
        )

    async def held(self, setting: Setting) -> list[tuple[TaskId, LeaseToken]]:
        """Give every queued task to the runtime, at work."""
        rows = await fetch(
            self.database,
            """UPDATE agent_task SET status = 'running', runtime_id = $1, lease_token = gen_random_uuid(), claimed_at = now(),
                      started_at = clock_timestamp(), lease_until = clock_timestamp() + interval '30 seconds'
                WHERE status = 'queued' RETURNING id, lease_token""",
            setting.runtime_id,
        )
        return [(row["id"], row["lease_token"]) for row in rows]

    async def parked(self) -> list[RunId]:
        found = await fetch(self.database, "SELECT run_id FROM dispatch_deferred WHERE kind = 'parked'")
        return [row["run_id"] for row in found]


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


@pytest.fixture
async def subject(database: Database, setting: Setting) -> Subject:
    rule = await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    trigger = await rules.make_schedule_trigger(database, setting, rule.id)
    return Subject(database, rule.id, trigger.id)


async def test_a_policy_that_comes_while_a_run_ends_parks_nobody_behind_it(
    database: Database, setting: Setting, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end began when the rule allowed overlap, and so without the rule's lock."""
    await subject.occur()
    await drain(worker(database))
    [(task_id, lease)] = await subject.held(setting)
    arriving = asyncio.Event()
    second: list[asyncio.Task[RunId]] = []

    async def release_late(conn: Conn, ids: list[AutopilotId]) -> list[RunId]:
        released = await release_parked(conn, ids)
        await subject.policy(OverlapPolicy.QUEUE_ONE)
        second.append(asyncio.create_task(subject.occur()))
        await until_somebody_waits(database)
        arriving.set()
        return released

    monkeypatch.setattr(finish, "release_parked", release_late)
    async with database.transaction() as conn:
        await finish.complete_task(conn, task_id, lease, "done")
    assert arriving.is_set()
    run_id = await second[0]
    assert await subject.parked() == []
    assert [r["run_id"] for r in await fetch(database, "SELECT run_id FROM dispatch_queue")] == [run_id]


async def test_an_end_that_waits_for_an_admission_releases_whom_it_parked(
    database: Database, setting: Setting, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round: the occurrence has parked behind the run when the end of it gets the run."""
    await subject.occur()
    await drain(worker(database))
    [(task_id, lease)] = await subject.held(setting)
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        async with database.transaction() as conn:
            assert (await finish.complete_task(conn, task_id, lease, "done")).released

    async def lock_then_edit(conn: Conn, ids: list[AutopilotId]) -> list[AutopilotId]:
        locked = await lock_for_finish(conn, ids)
        assert locked == []
        await subject.policy(OverlapPolicy.QUEUE_ONE)
        began.set()
        await may_go.wait()
        return locked

    began, may_go = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(finish, "lock_for_finish", lock_then_edit)
    ending.append(asyncio.create_task(end()))
    await began.wait()
    one = firing(
        subject.rule, Source.SCHEDULE, trigger_id=subject.trigger, planned_at=PLAN + timedelta(hours=1)
    )
    async with database.transaction() as conn:
        [outcome] = await admit_firings(conn, [one])
        assert outcome.decision.outcome == "park"
        may_go.set()
        await until_somebody_waits(database)
    await ending[0]
    assert await subject.parked() == []
    assert [r["run_id"] for r in await fetch(database, "SELECT run_id FROM dispatch_queue")] == [one.run_id]


async def test_ends_admissions_and_edits_at_once_leave_nobody_parked_for_nothing(
    database: Database, setting: Setting, subject: Subject
) -> None:
    """HAZARDS 3: without the sweep, which is only the net."""
    policies = [OverlapPolicy.QUEUE_ONE, OverlapPolicy.ALLOW, OverlapPolicy.QUEUE_ONE, OverlapPolicy.SKIP]

    async def occur() -> None:
        for _ in range(25):
            await subject.occur()

    async def work() -> None:
        one = worker(database)
        for _ in range(60):
            await one.step()
            for number, (task_id, lease) in enumerate(await subject.held(setting)):
                async with database.transaction() as conn:
                    if number % 3 == 0:
                        await finish.cancel_task(conn, task_id)
                    else:
                        await finish.fail_task(conn, task_id, lease, "no", FailureKind.AGENT)

    async def edit() -> None:
        for number in range(40):
            await subject.policy(policies[number % len(policies)])

    await asyncio.gather(occur(), occur(), work(), work(), edit())
    await subject.policy(OverlapPolicy.QUEUE_ONE)
    for _ in range(60):  # what is let go is done, until nothing is left
        await drain(worker(database))
        held = await subject.held(setting)
        if not held:
            break
        for task_id, lease in held:
            async with database.transaction() as conn:
                await finish.complete_task(conn, task_id, lease, "done")
    assert await subject.parked() == []
    open_runs = "SELECT id FROM autopilot_run WHERE completed_at IS NULL"
    assert await fetch(database, open_runs) == []
