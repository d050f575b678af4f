"""Postgres taken away and brought back, and every service restarted under load (S1.1, S1.3, S15)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

from autopilot.local.services import ServiceProcess

pytestmark = pytest.mark.timeout(240)

TWO = {"scheduler": 2, "dispatcher": 2}
TRIGGERS = 8


async def test_services_wait_for_postgres_and_resume_by_themselves() -> None:
    """S1.3: nobody exits when it is stopped, nor when it crashes, and work goes on within seconds of its return."""
    async with running_system(nats=False) as system:
        agent = await system.make_agent(await system.make_runtime())
        autopilot = await system.make_autopilot(agent)
        token = await system.make_webhook(autopilot)
        before = await system.post_webhook(token, {"n": 0}, delivery="before")
        await system.run_in(autopilot, before.body["run_id"], "issue_created")
        for crash in (False, True):
            await outlive_postgres(system, autopilot, token, crash=crash)


async def outlive_postgres(system: System, autopilot: str, token: str, *, crash: bool) -> None:
    """Take Postgres away: both doors say so (503), then go on by themselves."""
    delivery = f"sent while it was away, {crash}"
    await asyncio.to_thread(system.stack.postgres.stop, immediate=crash)
    refused = await system.post_webhook(token, {"n": 1}, delivery=delivery)
    assert refused.status == 503
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert (await system.api("GET", "/api/autopilots")).status == 503
    for process in system.stack.all_processes():
        assert process.exit_code is None, process.last_words()
    await asyncio.to_thread(system.stack.postgres.start)

    async def accepted() -> str | None:
        reply = await system.post_webhook(token, {"n": 1}, delivery=delivery)
        assert reply.status in (200, 503)
        return str(reply.body["run_id"]) if reply.status == 200 else None

    run_id = await eventually(accepted, "ingress takes webhooks again", within_s=30)
    await system.run_in(autopilot, run_id, "issue_created", within_s=30)
    for process in system.stack.all_processes():
        await asyncio.to_thread(process.wait_ready, 30)


async def test_a_rolling_restart_under_load_loses_and_doubles_nothing(
    postgres_admin_url: str, postgres_template: str
) -> None:
    """S15: SIGTERM finishes or hands back what is in hand, and ends with 0."""
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(replicas=TWO, database_url=url) as system,
    ):
        agent = await system.make_agent(await system.make_runtime())
        rules = [await system.make_autopilot(agent), await system.make_autopilot(agent, "run_only")]
        hooks = [await system.make_webhook(rule) for rule in rules]
        due = [await system.make_schedule(rule) for rule in rules for _ in range(TRIGGERS // 2)]
        sent: list[str] = []
        loaded = asyncio.create_task(load(system, hooks, sent, over := asyncio.Event()))
        for name in ("dispatcher", "scheduler"):
            for process in system.stack.processes[name]:
                await system.make_due(*due)
                await restart(process)
        await eventually(lambda: asyncio.sleep(0, len(sent) > 50), "there was load")
        over.set()
        await loaded

        await eventually(lambda: nothing_pends(system), "every run dispatched")
        runs = await system.fetch(
            "SELECT trigger_id, planned_at, source, webhook_delivery_id FROM autopilot_run"
        )
        assert sorted(
            str(run["webhook_delivery_id"]) for run in runs if run["source"] == "webhook"
        ) == sorted(sent)
        planned = [(run["trigger_id"], run["planned_at"]) for run in runs if run["source"] == "schedule"]
        assert len(planned) == len(set(planned)) >= TRIGGERS
        [work] = await system.fetch(
            """SELECT (SELECT count(*) FROM agent_task) AS tasks, (SELECT count(*) FROM issue) AS issues,
                      (SELECT count(*) FROM autopilot_run WHERE execution_mode = 'create_issue') AS wanted"""
        )
        assert (work["tasks"], work["issues"]) == (len(runs), work["wanted"])


async def restart(process: ServiceProcess) -> None:
    await asyncio.to_thread(process.stop)
    assert process.exit_code == 0, process.last_words()
    process.start()
    await asyncio.to_thread(process.wait_ready)


async def load(system: System, hooks: list[str], sent: list[str], over: asyncio.Event) -> None:
    """Webhooks one after the other until it is over; `sent` gets the ids of the deliveries, each accepted."""

    async def send() -> None:
        while not over.is_set():
            reply = await system.post_webhook(
                hooks[len(sent) % len(hooks)], {"n": len(sent)}, delivery=str(uuid.uuid4())
            )
            assert reply.body["status"] == "accepted"
            sent.append(reply.body["delivery_id"])
            await asyncio.sleep(0.02)

    await asyncio.gather(send(), send())


async def nothing_pends(system: System) -> bool:
    return not await system.fetch(
        """SELECT 1 FROM autopilot_run WHERE status = 'pending'
            UNION ALL SELECT 1 FROM autopilot_trigger WHERE next_run_at <= clock_timestamp()"""
    )
