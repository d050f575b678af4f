"""What a tick costs when nothing is due, among a million schedules and among a thousand: `python -m tests.bench.idle_tick`.

Each schedule has run once before. A tick is one query; its time in the database is that of the executor (EXPLAIN ANALYZE), without the way there and back;
the two databases are asked turn about.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import msgspec
from tests.bench.crowd import make_crowd
from tests.bench.support import bench_database

from autopilot.scheduler.jobs.schedule import ScheduleJob
from autopilot.storage import schedules
from autopilot.storage.database import Conn, Database

SMALL = (100, 10)  # rules, and the schedules of each
LARGE = (20_000, 50)
TICKS = 400

_RAN_BEFORE = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at, finished_at, schedule_rev, result)
    SELECT id, $1, 'trigger', id::text, next_run_at - interval '1 year', 'SUCCESS', 3, true, id, id, now(), now(), schedule_rev,
           '{"outcome": "admitted"}'
      FROM autopilot_trigger"""


class Side(msgspec.Struct, kw_only=True):
    """One database, with the milliseconds that ticks took in it, and as a whole."""

    count: int
    database: Database
    inside_ms: list[float] = msgspec.field(default_factory=list)
    whole_ms: list[float] = msgspec.field(default_factory=list)
    blocks: list[int] = msgspec.field(default_factory=list)


async def _tick(side: Side) -> None:
    job = ScheduleJob(side.database, wake_dispatch=lambda: None)
    began = time.perf_counter()
    pause = await job.step()
    side.whole_ms.append((time.perf_counter() - began) * 1000)
    assert isinstance(pause, float), f"something was due: {pause}"
    assert pause > 0
    async with side.database.connection() as conn:
        plan = await _explain(conn)
    side.inside_ms.append(plan["Execution Time"])
    side.blocks.append(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def _explain(conn: Conn) -> dict[str, Any]:
    sql = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {schedules.SQL['peek']}"
    told: str = await conn.fetchval(sql, schedules.JOB_NAME)
    plan: dict[str, Any] = json.loads(told)[0]
    return plan


async def _queries_of_a_tick(side: Side) -> int:
    """Statements that one tick sends, as the driver sees them."""
    sent: list[str] = []
    async with side.database.connection() as conn:
        conn.add_query_logger(lambda record: sent.append(record.query))
    # The pool has one connection, so that the tick takes the one that is watched.
    await ScheduleJob(side.database, wake_dispatch=lambda: None).step()
    return len(sent)


async def measure() -> None:
    """Print both, and the ratio of their medians."""
    async with AsyncExitStack() as stack:
        sides = [await _prepared(stack, rules, each) for rules, each in (SMALL, LARGE)]
        for _ in range(TICKS):
            for side in sides:
                await _tick(side)
        for side in sides:
            queries = await _queries_of_a_tick(side)
            print(
                f"idle tick, {side.count:,} schedules: {queries} query, in the database {_told(side.inside_ms)}, "
                f"{statistics.median(side.blocks):.0f} blocks; as a whole {_told(side.whole_ms)}"
            )
        few, many = (statistics.median(side.inside_ms) for side in sides)
    print(f"  in the database a million ÷ a thousand: {many / few:.2f} (medians of {TICKS} ticks in turn)")


def _told(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.3f} ms (p99 {ordered[int(len(ordered) * 0.99)]:.3f})"


async def _prepared(stack: AsyncExitStack, rules: int, each: int) -> Side:
    url = await stack.enter_async_context(bench_database())
    database = await stack.enter_async_context(Database(url, name="bench", max_size=1))
    began = time.perf_counter()
    await make_crowd(url, database, rules=rules, each=each)
    conn = await asyncpg.connect(url)
    try:
        await conn.execute(_RAN_BEFORE, schedules.JOB_NAME)
        await conn.execute("VACUUM ANALYZE")
        await conn.execute("CHECKPOINT")
    finally:
        await conn.close()
    print(f"  {rules * each:,} schedules made in {time.perf_counter() - began:.0f} s", flush=True)
    return Side(count=rules * each, database=database)


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
