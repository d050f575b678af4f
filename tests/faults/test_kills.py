"""Processes killed by SIGKILL at their worst moments: nothing lost, nothing twice (S1.1)."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

from autopilot.local.processes import Child
from autopilot.local.services import ServiceProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

SHORT_LEASE = {"AUTOPILOT_DISPATCH_LEASE_S": "2"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(postgres_admin_url: str, postgres_template: str) -> AsyncIterator[System]:
    """The two doors; each test starts the dispatcher and the scheduler that it wants to see die."""
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(nats=False, replicas={"dispatcher": 0, "scheduler": 0}, database_url=url) as running,
    ):
        yield running


def at(point: str, action: str = "kill") -> dict[str, str]:
    """Lets a service do this to itself at a named point."""
    return SHORT_LEASE | {"AUTOPILOT_TEST_POINTS": "1", "AUTOPILOT_POINTS": f"{point}={action}"}


async def start(system: System, name: str, env: dict[str, str] | None = None) -> ServiceProcess:
    return await asyncio.to_thread(system.stack.start_service, name, env or SHORT_LEASE)


async def dies(process: Child) -> None:
    async def look() -> bool:
        return process.exit_code is not None

    await eventually(look, f"{process.name} dies")
    assert process.exit_code == -signal.SIGKILL


async def rows(system: System, sql: str, autopilot: str) -> list[dict[str, Any]]:
    return await system.fetch(sql, uuid.UUID(autopilot))


@pytest.mark.parametrize(
    "point", ["dispatcher.after_claim", "dispatcher.before_commit", "dispatcher.after_commit"]
)
async def test_a_dispatcher_killed_between_claim_and_commit_loses_and_doubles_nothing(
    system: System, point: str
) -> None:
    """S10.1: after the lease another one takes the runs over."""
    agent = await system.make_agent(await system.make_runtime())
    rules = [await system.make_autopilot(agent), await system.make_autopilot(agent, "run_only")]
    hooks = [await system.make_webhook(rule) for rule in rules]
    doomed = await start(system, "dispatcher", at(point))
    accepted = await asyncio.gather(
        *(system.post_webhook(hooks[n % 2], {"n": n}, delivery=str(uuid.uuid4())) for n in range(20))
    )
    await dies(doomed)

    heir = await start(system, "dispatcher")
    try:
        for n, reply in enumerate(accepted):
            await system.run_in(rules[n % 2], reply.body["run_id"], "issue_created", "running")
    finally:
        await asyncio.to_thread(heir.stop)
    for rule, issues in zip(rules, (10, 0), strict=True):
        made = await rows(system, "SELECT run_id, issue_id FROM agent_task WHERE autopilot_id = $1", rule)
        wanted = [reply.body["run_id"] for reply in accepted if reply.body["autopilot_id"] == rule]
        assert sorted(str(task["run_id"]) for task in made) == sorted(wanted)
        assert len({task["issue_id"] for task in made} - {None}) == issues
        found = await rows(system, "SELECT 1 FROM issue WHERE origin_autopilot_id = $1", rule)
        assert len(found) == issues


async def test_a_scheduler_killed_between_claim_and_admission_admits_each_occurrence_once(
    system: System,
) -> None:
    """S7.8, HAZARDS 9, CASES QW6: its work is one transaction, so the kill leaves nothing to repair or to wait for."""
    agent = await system.make_agent(await system.make_runtime())
    autopilot = await system.make_autopilot(agent)
    due = [await system.make_schedule(autopilot) for _ in range(5)]
    doomed = await start(system, "scheduler", at("scheduler.schedule.before_commit"))
    planned = await system.make_due(*due)
    await dies(doomed)
    assert await rows(system, "SELECT 1 FROM autopilot_run WHERE autopilot_id = $1", autopilot) == []

    heir = await start(system, "scheduler")
    try:

        async def look() -> bool:
            found = await rows(system, "SELECT 1 FROM autopilot_run WHERE autopilot_id = $1", autopilot)
            return len(found) >= len(due)

        await eventually(look, "every occurrence admitted")
    finally:
        await asyncio.to_thread(heir.stop)
    runs = await system.fetch(
        "SELECT trigger_id FROM autopilot_run WHERE autopilot_id = $1 AND planned_at = $2",
        uuid.UUID(autopilot), planned,
    )  # fmt: skip
    assert sorted(str(run["trigger_id"]) for run in runs) == sorted(due)


async def test_a_sender_whose_answer_was_lost_sends_again_and_learns_of_the_one_run(system: System) -> None:
    """S9.7: ingress dies after its write and before its answer."""
    agent = await system.make_agent(await system.make_runtime())
    autopilot = await system.make_autopilot(agent)
    token = await system.make_webhook(autopilot)
    doomed = await start(system, "ingress", at("ingress.after_write"))
    delivery = str(uuid.uuid4())
    with suppress(aiohttp.ClientError):
        await system.post_webhook(token, {"n": 1}, delivery=delivery, url=doomed.url)
        pytest.fail("it answered")
    await dies(doomed)

    again = await system.post_webhook(token, {"n": 1}, delivery=delivery)
    assert (again.status, again.body["status"]) == (200, "duplicate")
    [run] = await rows(system, "SELECT id FROM autopilot_run WHERE autopilot_id = $1", autopilot)
    assert again.body["run_id"] == str(run["id"])


async def test_a_dispatcher_killed_while_it_decides_on_kept_webhooks_loses_and_doubles_nothing(
    system: System,
) -> None:
    """S9.10, S9.15: three of them die at it, the fourth finishes what is left."""
    agent = await system.make_agent(await system.make_runtime())
    autopilot = await system.make_autopilot(agent, "run_only")
    token = await system.make_webhook(autopilot)
    small = {"AUTOPILOT_DISPATCH_LEASE_S": "1", "AUTOPILOT_DISPATCH_BATCH_SIZE": "3"}
    doomed = [
        await start(system, "dispatcher", at(f"admissions.{point}") | small)
        for point in ("after_claim", "before_commit", "after_commit")
    ]
    broken = await start(system, "ingress", at("ingress.admit", "raise"))
    try:
        kept = [
            await system.post_webhook(token, {"n": n}, delivery=str(uuid.uuid4()), url=broken.url)
            for n in range(5)
        ]
    finally:
        await asyncio.to_thread(broken.stop)
    assert {(reply.status, reply.body["status"]) for reply in kept} == {(202, "queued")}
    await asyncio.gather(*(dies(process) for process in doomed))

    heir = await start(system, "dispatcher")
    try:

        async def look() -> bool:
            return len(await rows(system, "SELECT 1 FROM agent_task WHERE autopilot_id = $1", autopilot)) == 5

        await eventually(look, "every kept webhook has its task")
    finally:
        await asyncio.to_thread(heir.stop)
    found = await rows(
        system,
        """SELECT d.id, d.status, r.status AS run FROM webhook_delivery d JOIN autopilot_run r ON r.webhook_delivery_id = d.id
            WHERE d.autopilot_id = $1 ORDER BY d.id""",
        autopilot,
    )
    assert [str(row["id"]) for row in found] == [reply.body["delivery_id"] for reply in kept]
    assert {(row["status"], row["run"]) for row in found} == {("dispatched", "running")}


async def test_a_runtime_killed_while_it_works_loses_the_task_to_the_next(system: System) -> None:
    """S11.2, S11.3: the issue's task is queued again, once its lease is over, and another attempt ends it."""
    services = [await start(system, name) for name in ("dispatcher", "scheduler")]
    name = f"fragile-{uuid.uuid4().hex[:6]}"
    hangs = system.runtime_process(name, "sleep 300")
    hangs.start()
    heir = system.runtime_process(name)
    try:
        agent = await system.make_agent(await system.runtime_online(name))
        autopilot = await system.make_autopilot(agent)
        run = await system.ok("POST", f"/api/autopilots/{autopilot}/trigger?wait=10")
        await eventually(lambda: task_runs(system, run["id"]), "the task runs")
        hangs.kill()
        await system.fetch(  # as if its lease had run for 30 s
            "UPDATE agent_task SET lease_until = clock_timestamp() WHERE id = $1", uuid.UUID(run["task_id"])
        )
        heir.start()
        done = await system.run_in(autopilot, run["id"], "completed", "failed", within_s=90)
        assert (done["status"], done["task_attempt"]) == ("completed", 2)
        assert len(await rows(system, "SELECT 1 FROM agent_task WHERE autopilot_id = $1", autopilot)) == 1
    finally:
        for process in (hangs, heir, *services):
            await asyncio.to_thread(process.stop)


async def task_runs(system: System, run_id: str) -> bool:
    [task] = await system.fetch("SELECT status FROM agent_task WHERE run_id = $1", uuid.UUID(run_id))
    return bool(task["status"] == "running")
