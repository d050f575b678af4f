"""Runs dispatched a second against PgQueuer's drain of as many no-op jobs on the same server: `python -m tests.bench.dispatch`.

Half of ours make an issue with its task, half a bare task; each also writes an event. One process each, turn about. Then ours again,
while another session has been holding an old snapshot for 10 s of such work, which keeps every dead row where it is.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

import asyncpg
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.models import Job
from pgqueuer.domain.types import QueueExecutionMode
from tests.bench.support import bench_database, print_ratio, rates_in_turn, truncate
from tests.support.dispatching import admit, drain, firing, worker
from tests.support.rules import make_autopilot, make_setting, set_runtime

from autopilot.domain.ids import AutopilotId, RuntimeId
from autopilot.domain.states import ExecutionMode
from autopilot.storage.database import Database

RUNS = 20_000
ROUNDS = 3
LOOPS = 2
BATCH = 500
HELD_S = 10.0


async def _fill(database: Database, autopilots: list[AutopilotId]) -> None:
    for start in range(0, RUNS, 1000):
        await admit(database, [firing(autopilots[n % len(autopilots)]) for n in range(start, start + 1000)])


async def _ours(url: str, database: Database, autopilots: list[AutopilotId], runtime_id: RuntimeId) -> float:
    tables = "autopilot_run, dispatch_queue, issue, issue_subscriber, agent_task, run_event_outbox, run_event"
    await truncate(url, tables)
    return await _drained(database, autopilots, runtime_id)


async def _drained(database: Database, autopilots: list[AutopilotId], runtime_id: RuntimeId) -> float:
    await _fill(database, autopilots)
    await set_runtime(database, runtime_id)
    async with database.connection() as conn:
        before = await conn.fetchval("SELECT count(*) FROM agent_task")
    started = time.perf_counter()
    await asyncio.gather(*(drain(worker(database, dispatch_batch_size=BATCH)) for _ in range(LOOPS)))
    seconds = time.perf_counter() - started
    async with database.connection() as conn:
        made = await conn.fetchval("SELECT count(*) FROM agent_task") - before
    assert made == RUNS, f"{made} tasks of {RUNS} runs"
    return RUNS / seconds


async def _held(
    url: str, database: Database, autopilots: list[AutopilotId], runtime_id: RuntimeId
) -> tuple[float, float]:
    """The rate on clean tables, and that after so many seconds of work under an old snapshot."""
    clean = await _ours(url, database, autopilots, runtime_id)
    holder = await asyncpg.connect(url)
    try:
        async with holder.transaction(isolation="repeatable_read"):
            await holder.execute("SELECT 1 FROM dispatch_queue")
            until = time.perf_counter() + HELD_S
            rate = 0.0
            while rate == 0.0 or time.perf_counter() < until:
                rate = await _drained(database, autopilots, runtime_id)
            return clean, rate
    finally:
        await holder.close()


async def _pgqueuer(pool: asyncpg.Pool[asyncpg.Record]) -> float:
    driver = AsyncpgPoolDriver(pool)
    await Queries(driver).enqueue(["noop"] * RUNS, [None] * RUNS, [0] * RUNS)
    manager = QueueManager(Queries(driver))
    done = 0

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        nonlocal done
        done += 1

    started = time.perf_counter()
    await manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    seconds = time.perf_counter() - started
    assert done == RUNS, f"PgQueuer did {done} of {RUNS}"
    return RUNS / seconds


async def measure() -> None:
    """Print one line: both medians and the ratio pair by pair."""
    async with (
        bench_database() as url,
        Database(url, name="bench", max_size=6) as database,
        asyncpg.create_pool(url, min_size=2, max_size=6) as pool,
    ):
        await Queries(AsyncpgPoolDriver(pool)).install()
        setting = await make_setting(database)
        modes = (ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY)
        autopilots = [
            (await make_autopilot(database, setting, execution_mode=modes[n % 2])).id for n in range(20)
        ]
        ours, theirs = await rates_in_turn(
            lambda: _ours(url, database, autopilots, setting.runtime_id), lambda: _pgqueuer(pool), ROUNDS
        )
        clean, held = await _held(url, database, autopilots, setting.runtime_id)
    name = f"dispatch of {RUNS:,} runs (half issues, half bare tasks)"
    print_ratio(name, ours, theirs, "runs/s", f"PgQueuer {version('pgqueuer')} drains no-op jobs at")
    print(
        f"after {HELD_S:.0f} s with an old snapshot held: {held:,.0f} runs/s, clean {clean:,.0f} runs/s; ratio {held / clean:.2f}"
    )


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
