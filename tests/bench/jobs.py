"""A tick of a job with 2,000 scopes against running its plans by a statement each: `python -m tests.bench.jobs`.

Both sides claim every plan under a lease, run a handler that does nothing, and write its end by its token, over four
connections. The other side does no more than that: no planning, no heartbeat, no time limit.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from tests.bench.support import bench_database, print_ratio, rates_in_turn

from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage.database import Database
from autopilot.storage.executions import Scope

SCOPES = 2_000
ROUNDS = 3
CONNECTIONS = 4
PLAN = datetime(2026, 1, 1, tzinfo=UTC)

_HISTORY = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at, finished_at)
    SELECT gen_random_uuid(), 'history', 'thing', n::text, '2026-01-01', 'SUCCESS', 1, false, gen_random_uuid(),
           gen_random_uuid(), now(), clock_timestamp() FROM generate_series(1, 20000) n"""
_CLAIM = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at)
    VALUES ($1, $2, 'thing', $3, $4, 'RUNNING', 1, false, $5, $6, clock_timestamp() + interval '5 min')
        ON CONFLICT DO NOTHING RETURNING id"""
_SUCCEED = """
    UPDATE sys_cron_executions SET state = 'SUCCESS', finished_at = clock_timestamp()
     WHERE id = $1 AND lease_token = $2 AND state = 'RUNNING' RETURNING id"""


async def _handle(_run: JobRun) -> None:
    return None


async def _scopes() -> Sequence[Scope]:
    return [Scope("thing", str(number)) for number in range(SCOPES)]


async def _tick(database: Database, name: str) -> None:
    spec = JobSpec(name=name, handler=_handle, cadence=timedelta(days=1), scopes=_scopes)
    async with RunningJob(spec, Claimant(database), database) as job:
        await job.tick()
        await job.idle()


async def _singly(database: Database, name: str) -> None:
    runner = random_token()

    async def run(number: int) -> None:
        key, token = uuid7(), random_token()
        async with database.connection() as conn:
            assert await conn.fetchval(_CLAIM, key, name, str(number), PLAN, runner, token) == key
        async with database.connection() as conn:
            assert await conn.fetchval(_SUCCEED, key, token) == key

    await asyncio.gather(*(run(number) for number in range(SCOPES)))


async def measure() -> None:
    """Print the ratio, and what a tick costs."""
    async with (
        bench_database() as url,
        Database(url, name="bench", max_size=CONNECTIONS, acquire_timeout_s=60) as database,
    ):
        transactions: list[int] = []
        idle_ms: list[float] = []
        numbers = itertools.count()

        async def commits() -> int:
            async with database.connection() as conn:
                await conn.execute("SELECT pg_stat_force_next_flush()")
                sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
                return int(await conn.fetchval(sql))

        async def measured(work: Callable[[Database, str], Awaitable[None]], name: str) -> float:
            """Plans a second of a job of its own, so that the table only grows."""
            started = time.perf_counter()
            await work(database, name)
            seconds = time.perf_counter() - started
            async with database.connection() as conn:
                sql = "SELECT count(*) FROM sys_cron_executions WHERE state = 'SUCCESS' AND job_name = $1"
                assert await conn.fetchval(sql, name) == SCOPES
                await conn.execute("ANALYZE sys_cron_executions")
            return SCOPES / seconds

        async def ticked() -> float:
            before, name = await commits(), f"ours {next(numbers)}"
            rate = await measured(_tick, name)
            transactions.append(await commits() - before)
            started = time.perf_counter()
            await _tick(database, name)
            idle_ms.append((time.perf_counter() - started) * 1000)
            return rate

        async def singly() -> float:
            return await measured(_singly, f"theirs {next(numbers)}")

        async with database.connection() as conn:
            await conn.execute(_HISTORY)
            await conn.execute("VACUUM ANALYZE sys_cron_executions")
        ours, theirs = await rates_in_turn(ticked, singly, ROUNDS)
    print_ratio(f"a job of {SCOPES:,} scopes", ours, theirs, "plans/s", "a statement a plan")
    print(
        f"  {statistics.median(transactions):,.0f} transactions; with nothing due {statistics.median(idle_ms):,.0f} ms"
    )


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
