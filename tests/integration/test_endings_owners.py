"""Nothing stays in flight for ever: each state that is not final has an owner, a deadline and somebody who looks (S11.3, S11.6).

The clock is the database's, and it jumps; what sweeps is what the services run. The table of it is in docs/guarantees.md.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support import rules
from tests.support.archive import Archive, aging_archive
from tests.support.dispatching import admit, admit_one, drain, execute, fetch, firing, row, worker

from autopilot.bus.connection import Bus
from autopilot.dispatcher.upkeep import Upkeep
from autopilot.domain.ids import LeaseToken, RunId, TaskId
from autopilot.domain.states import ExecutionMode, IssueStatus, OverlapPolicy, RunStatus, Source, TaskStatus
from autopilot.engine import finish
from autopilot.engine.claims import LEASE_S, TIMEOUT_GRACE_S, claim_tasks
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.jobs.leases import recover_tasks
from autopilot.storage import runtime_protocol
from autopilot.storage.runtime_protocol import Renewal

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY

Make = Callable[[Archive], Awaitable[RunId]]
SOON = timedelta(minutes=1)
EXPIRY = timedelta(hours=2) + SOON
PARKING = timedelta(hours=24) + SOON
FOR_EVER = timedelta.max


@pytest.fixture
async def past(postgres_url: str) -> AsyncIterator[Archive]:
    async with aging_archive(postgres_url) as archive:
        yield archive


async def keep_house(past: Archive) -> None:
    """What the sweeps of all services do once, and a dispatcher that has come up meanwhile."""
    await recover_tasks(past.database, Bus(None, name="test"))
    upkeep = Upkeep(past.database, wake=lambda: None)
    await upkeep.sweep_parked()
    await upkeep.move_due()
    await drain(worker(past.database))


async def hold(past: Archive, run_id: RunId, status: str) -> RunId:
    """The run's task is a runtime's that is never heard of again."""
    await execute(
        past.database,
        """UPDATE agent_task SET status = $2, claims = 1, runtime_id = $3, claim_id = $4, lease_token = $4, claimed_at = clock_timestamp(),
                  lease_until = clock_timestamp() + make_interval(secs => $5),
                  started_at = CASE WHEN $2 = 'running' THEN clock_timestamp() END
            WHERE run_id = $1""",
        *(run_id, status, past.setting.runtime_id, uuid7(), LEASE_S),
    )
    return run_id


async def queued(past: Archive) -> RunId:
    return await admit_one(past.database, await past.rule(BARE))


async def leased(past: Archive) -> RunId:
    """A dispatcher has claimed it and was killed."""
    run_id = await queued(past)
    await execute(
        past.database,
        """UPDATE dispatch_queue SET claims = 1, lease_token = $2, lease_until = clock_timestamp() + interval '30 seconds'
            WHERE run_id = $1""",
        *(run_id, uuid7()),
    )
    return run_id


def deferred(kind: str) -> Make:
    async def make(past: Archive) -> RunId:
        run_id = await queued(past)
        await execute(
            past.database,
            """WITH gone AS (DELETE FROM dispatch_queue WHERE run_id = $1 RETURNING run_id, autopilot_id, enqueued_at)
               INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, attempts, available_at, enqueued_at)
               SELECT $2, run_id, autopilot_id, 1, clock_timestamp() + interval '2 minutes', enqueued_at FROM gone""",
            *(run_id, kind),
        )
        return run_id

    return make


def parked(mode: ExecutionMode) -> Make:
    """Behind a run whose runtime is gone: a bare one ends for that, the work on an issue waits for it for ever."""

    async def make(past: Archive) -> RunId:
        rule = await rules.make_autopilot(
            past.database, past.setting, execution_mode=mode, overlap_policy=OverlapPolicy.QUEUE_ONE
        )
        trigger = await rules.make_schedule_trigger(past.database, past.setting, rule.id)
        run_ids = []
        for minute in (2, 1):
            plan = past.time.now - timedelta(minutes=minute)
            one = firing(rule.id, Source.SCHEDULE, trigger_id=trigger.id, planned_at=plan)
            await admit(past.database, [one])
            await past.executed(
                "autopilot_schedule_dispatch",
                scope_kind="trigger",
                scope_id=str(trigger.id),
                schedule_rev=1,
                result={},
                plan_time=plan,
            )
            await past.dispatch()
            run_ids.append(one.run_id)
        if mode is BARE:
            await hold(past, run_ids[0], "running")
        return run_ids[1]

    return make


def at_work(mode: ExecutionMode, status: str) -> Make:
    async def make(past: Archive) -> RunId:
        run_id = await past.started(mode)
        return run_id if status == "queued" else await hold(past, run_id, status)

    return make


async def put_back(past: Archive) -> RunId:
    """The agent is done, and a person has put the issue back meanwhile: it waits for them."""
    run_id = await past.started(ISSUE)
    await past.move_issue(run_id, IssueStatus.BACKLOG)
    await past.complete(run_id)
    return run_id


# What is not final, with its owner gone: how long it may take until it is.
STATES: dict[str, tuple[Make, timedelta]] = {
    "pending, in the queue": (queued, EXPIRY),
    "pending, leased by a dispatcher": (leased, EXPIRY),
    "pending, waiting for its next attempt": (deferred("retry"), EXPIRY),
    "pending, paced": (deferred("paced"), EXPIRY),
    "pending, parked behind a bare run": (parked(BARE), EXPIRY),
    "pending, parked behind an issue": (parked(ISSUE), PARKING),
    "running, task queued": (at_work(BARE, "queued"), EXPIRY),
    "running, task claimed": (at_work(BARE, "claimed"), EXPIRY),
    "running, task running": (at_work(BARE, "running"), SOON),
    "issue_created, task queued": (at_work(ISSUE, "queued"), FOR_EVER),
    "issue_created, task claimed": (at_work(ISSUE, "claimed"), FOR_EVER),
    "issue_created, task running": (at_work(ISSUE, "running"), FOR_EVER),
    "issue_created, issue with a person": (put_back, FOR_EVER),
}


async def test_with_every_owner_gone_all_ends_but_what_waits_for_a_runtime_or_a_person(past: Archive) -> None:
    """S11.3, S11.6, CASES LE5, QW3: within its time, whatever nobody does; a lost runtime's work within a minute."""
    made = {name: await make(past) for name, (make, _) in STATES.items()}
    began = past.time.now
    await past.assert_coherent()
    steps = [timedelta(seconds=15 * n) for n in range(1, 12)] + [
        timedelta(hours=1),
        timedelta(hours=2) - SOON,
        EXPIRY,
        timedelta(hours=24) - SOON,
        PARKING,
        timedelta(days=30),
    ]
    for step in steps:
        await past.time.set(began + step)
        await keep_house(past)
    late: dict[str, str] = {}
    for name, run_id in made.items():
        run = await row(past.database, "autopilot_run", run_id)
        took = FOR_EVER if run["completed_at"] is None else run["completed_at"] - began
        if took > STATES[name][1] or (took is not FOR_EVER) != (STATES[name][1] is not FOR_EVER):
            late[name] = f"{run['status']} {run['reason_code']} after {took}"
    assert late == {}
    waiting = await fetch(
        past.database,
        """SELECT t.status, i.status AS issue, count(*) FROM autopilot_run r JOIN issue i ON i.id = r.issue_id JOIN agent_task t ON t.id = r.task_id
            WHERE r.completed_at IS NULL GROUP BY 1, 2 ORDER BY 2, 1""",
    )
    assert {(found["status"], found["issue"]) for found in waiting} == {
        ("completed", "backlog"),
        ("queued", "todo"),
    }
    assert not await fetch(
        past.database, "SELECT 1 FROM dispatch_queue UNION ALL SELECT 1 FROM dispatch_deferred"
    )
    assert not await fetch(past.database, "SELECT 1 FROM agent_task WHERE status IN ('claimed', 'running')")


@pytest.mark.parametrize("starts", [False, True], ids=["never starts", "dies at work"])
async def test_a_runtime_that_dies_of_a_task_again_and_again_does_not_do_so_for_ever(
    past: Archive, starts: bool
) -> None:
    """S11.2, HAZARDS 14, CASES LE5: three attempts, and five claims without any."""
    run_id = await past.started(ISSUE)
    claims = 0
    while (await row(past.database, "autopilot_run", run_id))["completed_at"] is None:
        claimed = await claim_tasks(
            past.database, past.setting.workspace_id, past.setting.runtime_id, random_token(), limit=1
        )
        for task in claimed.tasks:
            claims += 1
            if starts:
                async with past.database.connection() as conn:
                    await runtime_protocol.start_task(
                        conn, task.id, task.lease_token, lease_s=LEASE_S, grace_s=TIMEOUT_GRACE_S
                    )
        await past.time.advance(timedelta(seconds=LEASE_S + 1))
        await keep_house(past)
        assert past.time.now - past.start < timedelta(minutes=15)
    run = await row(past.database, "autopilot_run", run_id)
    assert (run["status"], run["reason_code"]) == ("failed", "task_failed")
    assert claims == (3 if starts else finish.CLAIM_LIMIT + 2)


@pytest.mark.parametrize("status", ["claimed", "running"])
async def test_a_runtime_that_renews_for_ever_keeps_a_task_no_longer_than_its_time(
    past: Archive, status: str
) -> None:
    """S11.7: an hour, and half a minute to say so."""
    run_id = await hold(past, await past.started(BARE), status)
    [task] = await fetch(past.database, "SELECT id, lease_token FROM agent_task WHERE run_id = $1", run_id)
    renewal = Renewal(id=TaskId(task["id"]), lease_token=LeaseToken(task["lease_token"]))
    alive = True
    while alive:
        await past.time.advance(timedelta(seconds=29))
        async with past.database.connection() as conn:
            answer = await runtime_protocol.renew_tasks(
                conn, past.setting.runtime_id, [renewal], lease_s=LEASE_S, grace_s=TIMEOUT_GRACE_S
            )
        alive = answer[renewal.id].alive
    assert timedelta(seconds=3630) <= past.time.now - past.start < timedelta(seconds=3660)
    await keep_house(past)
    after = await row(past.database, "agent_task", task["id"])
    assert after["status"] == ("queued" if status == "claimed" else "failed")


def test_the_documented_table_names_every_state_that_is_not_final() -> None:
    """And each with an owner, a time and who looks."""
    text = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    section = text.partition("## What is not final, and who sees to it")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    assert all(len(cells) == 4 and all(cells) for cells in rows)
    named = " ".join(cells[0] for cells in rows)
    final = {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.SKIPPED}
    states = [*(s.value for s in RunStatus if s not in final), "task queued", "task claimed", "task running"]
    ends = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
    assert {f"task {s.value}" for s in TaskStatus if s not in ends} <= set(states)
    for state in [*states, "parked", "paced", "undecided", "RUNNING", "FAILED", "event"]:
        assert re.search(rf"\b{state}\b", named), state
