"""POST to a runtime that waits, beside PgQueuer's enqueue to handler: `python -m tests.bench.handoff`.

Webhooks come at 200 a second, and at 50, which leaves a small machine some rest, without waiting for one another; the four services run as processes, with NATS and with polling alone, and a
runtime polls for whatever there is; it keeps what it gets. PgQueuer's worker is a process too, and is told by NOTIFY. Each has a database of its
own on a server with the same settings, and nothing else looks at it meanwhile. Both senders and both workers run on uvloop. The clock is the machine's monotonic one.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from importlib.metadata import version

import asyncpg
import msgspec
import uvloop
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from tests.bench.support import bench_database, percentile
from tests.bench.wire import Wire, post
from tests.support.system import System, running_system

RATE, EASY_RATE = 200, 50
WARM_UP_S, MEASURED_S = 2, 3
HOOKS = 4  # a pace of 6,000 a minute each
LIMIT_S = 60.0
PAYLOAD = {"ref": "refs/heads/main", "commits": [{"message": "x" * 80} for _ in range(40)]}


async def _at_rate(rate: int, send: Callable[[int], Coroutine[None, None, None]]) -> None:
    """Call it for each number at its time, however long the others take."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(rate * (WARM_UP_S + MEASURED_S)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            group.create_task(send(number))


async def _claim_all(system: System, runtime_id: str, tasks: int) -> dict[str, float]:
    """Claim over the protocol until what was sent has been handed over; when it was, by run."""
    url = system.stack.api_url + "/api/runtime/claim"
    headers = {"Authorization": f"Bearer {system.runtime_token}", "X-Workspace": system.workspace}
    handed: dict[str, float] = {}
    wire = await Wire.open(url)
    while len(handed) < tasks:
        body = {"runtime_id": runtime_id, "claim_id": str(uuid.uuid4()), "limit": 100, "wait_s": 5}
        answer = await wire.send(post(url, msgspec.json.encode(body), headers))
        at = time.perf_counter()
        handed |= {task["run_id"]: at for task in msgspec.json.decode(answer)["tasks"]}
    wire.close()
    return handed


async def _ours(rate: int, *, nats: bool) -> list[float]:
    """Milliseconds from the start of a POST to the answer that hands its task over, the first ones left out."""
    async with (
        bench_database() as url,
        running_system(nats=nats, database_url=url, watched=False) as system,
    ):
        runs = rate * (WARM_UP_S + MEASURED_S)
        machine = {"name": "bench", "concurrency": runs}
        made = await system.ok("POST", "/api/runtime/register", machine, token=system.runtime_token)
        agent = await system.make_agent(made["runtime_id"])
        hooks = [
            f"{system.stack.ingress_url}/api/webhooks/autopilots/{token}"
            for token in [
                await system.make_webhook(await system.make_autopilot(agent, "run_only"))
                for _ in range(HOOKS)
            ]
        ]
        payload = msgspec.json.encode(PAYLOAD)
        idle: list[Wire] = []
        sent: dict[str, float] = {}

        async def send(number: int) -> None:
            headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": f"handoff-{number}"}
            request = post(hooks[number % HOOKS], payload, headers)
            wire = idle.pop() if idle else await Wire.open(hooks[0])
            began = time.perf_counter()
            answer = msgspec.json.decode(await wire.send(request))
            idle.append(wire)
            assert answer["status"] == "accepted", answer
            if number >= rate * WARM_UP_S:
                sent[answer["run_id"]] = began

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            claiming = group.create_task(_claim_all(system, made["runtime_id"], runs))
            await _at_rate(rate, send)
        for wire in idle:
            wire.close()
        handed = claiming.result()
    return [(handed[run_id] - began) * 1000 for run_id, began in sent.items()]


async def _theirs(rate: int) -> list[float]:
    async with bench_database() as url, asyncpg.create_pool(url, min_size=2, max_size=8) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.rival_pgqueuer", url, str(rate * (WARM_UP_S + MEASURED_S))),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"ready\n"
            sent: dict[int, float] = {}

            async def send(number: int) -> None:
                sent[number] = time.perf_counter()
                await queries.enqueue("noop", str(number).encode())

            await _at_rate(rate, send)
            async with asyncio.timeout(LIMIT_S):
                told, _ = await worker.communicate()
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
    handled = dict(line.split() for line in told.decode().splitlines())
    return [
        (float(handled[str(number)]) - at) * 1000 for number, at in sent.items() if number >= rate * WARM_UP_S
    ]


async def measure() -> None:
    """Print a line for each way."""
    for rate in (RATE, EASY_RATE):
        theirs = await _theirs(rate)
        print(f"PgQueuer {version('pgqueuer')}, enqueue → handler at {rate}/s: {_told(theirs)}", flush=True)
        for nats in (True, False) if rate == RATE else (True,):
            ours = await _ours(rate, nats=nats)
            ratios = " and ".join(f"{percentile(ours, p) / percentile(theirs, p):.1f}" for p in (0.5, 0.99))
            name = "with NATS" if nats else "polling alone"
            print(
                f"POST → task handed to a waiting runtime at {rate}/s, {name}: {_told(ours)}; × {ratios}",
                flush=True,
            )


def _told(values: list[float]) -> str:
    return f"p50 {percentile(values, 0.5):.1f} ms, p99 {percentile(values, 0.99):.1f} ms"


def main() -> None:
    """Run the benchmark."""
    uvloop.run(measure())


if __name__ == "__main__":
    main()
