"""POST to task: how long after a webhook is sent its task can be seen in the database: `python -m tests.bench.latency`.

The four services run as processes; with NATS, and with polling alone. Sent one at a time, so that nothing queues.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

from tests.bench.support import percentile
from tests.support.system import System, running_system

POSTS = 150
PACE_S = 0.05
LOOK_EVERY_S = 0.001
LIMIT_S = 10.0


async def _prepared(system: System) -> str:
    agent = await system.make_agent(await system.make_runtime())
    autopilot = await system.make_autopilot(agent, "create_issue")
    trigger = await system.make_trigger(autopilot, kind="webhook", provider="github")
    return str(trigger["webhook_token"])


async def _visible(system: System, run_id: UUID) -> float:
    """The time at which a task of the run could be seen first, on the clock of `time.perf_counter`."""
    deadline = time.perf_counter() + LIMIT_S
    async with system.database.connection() as conn:
        while not await conn.fetchval("SELECT 1 FROM agent_task WHERE run_id = $1", run_id):
            assert time.perf_counter() < deadline, f"no task for run {run_id} within {LIMIT_S:.0f} s"
            await asyncio.sleep(LOOK_EVERY_S)
    return time.perf_counter()


async def _one(system: System, token: str, number: int, payload: Any) -> tuple[float, float]:
    """Milliseconds from the start of the POST to its answer, and to the visible task."""
    began = time.perf_counter()
    reply = await system.post_webhook(token, payload, delivery=f"latency-{number}")
    answered = time.perf_counter()
    assert reply.body["status"] == "accepted", reply
    return (answered - began) * 1000, (await _visible(system, UUID(reply.body["run_id"])) - began) * 1000


async def measure(*, nats: bool) -> None:
    """Print one line for a stack with NATS or without."""
    async with running_system(nats=nats) as system:
        token = await _prepared(system)
        payload = {"ref": "refs/heads/main", "commits": [{"message": "x" * 80} for _ in range(40)]}
        await _one(system, token, -1, payload)
        answers, tasks = [], []
        for number in range(POSTS):
            await asyncio.sleep(PACE_S)
            answer, task = await _one(system, token, number, payload)
            answers.append(answer)
            tasks.append(task)
    name = "with NATS" if nats else "polling alone"
    told = [f"{percentile(v, 0.5):.1f} / {percentile(v, 0.99):.1f} ms" for v in (answers, tasks)]
    print(f"POST → answer, p50 / p99, {name}: {told[0]}; POST → task visible: {told[1]} ({POSTS} posts)")


def main() -> None:
    """Run the benchmark both ways."""
    for nats in (True, False):
        asyncio.run(measure(nats=nats))


if __name__ == "__main__":
    main()
