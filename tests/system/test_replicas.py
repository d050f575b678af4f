"""Two of each service at once: each occurrence one run, each run one issue or task (S1.1)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

pytestmark = pytest.mark.timeout(180)

TWO = {"scheduler": 2, "dispatcher": 2, "rules-api": 2, "ingress": 2}
RULES = 4
TRIGGERS_A_RULE = 15
WEBHOOKS = 120
BY_HAND = 20


@pytest.mark.parametrize("nats", [True, False], ids=["nats", "no-nats"])
async def test_two_replicas_share_many_triggers_and_runs_without_a_double(
    postgres_admin_url: str, postgres_template: str, nats: bool
) -> None:
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(nats=nats, replicas=TWO, database_url=url) as system,
    ):
        agent = await system.make_agent(await system.make_runtime())
        modes = ["create_issue", "run_only"] * (RULES // 2)
        rules = [await system.make_autopilot(agent, mode) for mode in modes]
        due = [await system.make_schedule(rule) for rule in rules for _ in range(TRIGGERS_A_RULE)]
        hooks = [await system.make_webhook(rule) for rule in rules]
        planned = await system.make_due(*due)
        await asyncio.gather(
            *(send_webhook(system, hooks, number) for number in range(WEBHOOKS)), by_hand(system, rules)
        )

        await eventually(lambda: nothing_pends(system, due), "every run dispatched")
        runs = await system.fetch("SELECT * FROM autopilot_run")
        occurrences = [run["trigger_id"] for run in runs if run["planned_at"] == planned]
        assert sorted(map(str, occurrences)) == sorted(due)
        assert sum(run["source"] == "webhook" for run in runs) == WEBHOOKS
        assert sum(run["source"] == "manual" for run in runs) == BY_HAND
        assert {run["status"] for run in runs} <= {"issue_created", "running"}
        await assert_one_piece_of_work_each(system)
        for name in ("scheduler", "dispatcher"):
            assert all(process.exit_code is None for process in system.stack.processes[name])


async def send_webhook(system: System, hooks: list[str], number: int) -> None:
    """To one of the two ingresses, and once more to the other, as a sender that retries would."""
    delivery = str(uuid.uuid4())
    told = []
    for process in system.stack.processes["ingress"]:
        reply = await system.post_webhook(
            hooks[number % len(hooks)], {"number": number}, delivery=delivery, url=process.url
        )
        told.append(reply.body)
    assert [reply["status"] for reply in told] == ["accepted", "duplicate"]
    assert told[0]["run_id"] == told[1]["run_id"]


async def by_hand(system: System, rules: list[str]) -> None:
    for number in range(BY_HAND):
        await system.ok("POST", f"/api/autopilots/{rules[number % len(rules)]}/trigger?wait=0")


async def nothing_pends(system: System, due: list[str]) -> bool:
    """Whether all due occurrences are admitted and no run waits for the dispatcher."""
    [row] = await system.fetch(
        """SELECT (SELECT count(DISTINCT trigger_id) FROM autopilot_run WHERE source = 'schedule') AS admitted,
                  (SELECT count(*) FROM autopilot_run WHERE status = 'pending') AS pending"""
    )
    return (row["admitted"], row["pending"]) == (len(due), 0)


async def assert_one_piece_of_work_each(system: System) -> None:
    """Each started run has one task, each create_issue run one issue, and issue numbers have no gap."""
    [row] = await system.fetch(
        """SELECT (SELECT count(*) FROM autopilot_run WHERE task_id IS NOT NULL) AS started,
                  (SELECT count(*) FROM agent_task) AS tasks,
                  (SELECT count(*) FROM autopilot_run WHERE issue_id IS NOT NULL) AS issue_runs,
                  (SELECT count(*) FROM issue) AS issues,
                  (SELECT max(number) FROM issue) AS highest"""
    )
    assert row["started"] == row["tasks"]
    assert row["issue_runs"] == row["issues"] == row["highest"]
