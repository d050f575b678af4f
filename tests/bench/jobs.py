"""A tick of a job with 2,000 scopes against running its plans by a statement each: `python -m tests.bench.jobs`.

Both sides claim every plan under a lease, run a handler that does nothing, and write its end by its token, over four
connections. The other side does no more than that: no planning, no heartbeat, no time limit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tests.bench.support import bench_database, print_ratio, rates_in_turn, truncate

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

_CLAIM = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at)
    VALUES ($1, 'scopes', 'thing', $2, $3, 'RUNNING', 1, false, $4, $5, clock_timestamp() + interval '5 min')
        ON CONFLICT DO NOTHING RETURNING id"""
_SUCCEED = """
    UPDATE sys_cron_executions SET state = 'SUCCESS', finished_at = clock_timestamp()
     WHERE id = $1 AND lease_token = $2 AND state = 'RUNNING' RETURNING id"""


async def _handle(_run: JobRun) -> None:
    return None


async def _scopes() -> Sequence[Scope]:
    return [Scope("thing", str(number)) for number in range(SCOPES)]


async def _tick(database: Database) -> None:
    spec = JobSpec(name="scopes", handler=_handle, cadence=timedelta(days=1), scopes=_scopes)
    async with RunningJob(spec, Claimant(database), database) as job:
        await job.tick()
        await job.idle()


async def _singly(database: Database) -> None:
    runner = random_token()

    async def run(number: int) -> None:
        key, token = uuid7(), random_token()
        async with database.connection() as conn:
            assert await conn.fetchval(_CLAIM, key, str(number), PLAN, runner, token) == key
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

        async def commits() -> int:
            async with database.connection() as conn:
                await conn.execute("SELECT pg_stat_force_next_flush()")
                sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
                return int(await conn.fetchval(sql))

        async def finished() -> int:
            async with database.connection() as conn:
                sql = "SELECT count(*) FROM sys_cron_executions WHERE state = 'SUCCESS'"
                return int(await conn.fetchval(sql))

        async def ticked() -> float:
            await truncate(url, "sys_cron_executions")
            before, started = await commits(), time.perf_counter()
            await _tick(database)
            seconds = time.perf_counter() - started
            transactions.append(await commits() - before)
            assert await finished() == SCOPES
            started = time.perf_counter()
            await _tick(database)
            idle_ms.append((time.perf_counter() - started) * 1000)
            return SCOPES / seconds

        async def singly() -> float:
            await truncate(url, "sys_cron_executions")
            started = time.perf_counter()
            await _singly(database)
            seconds = time.perf_counter() - started
            assert await finished() == SCOPES
            return SCOPES / seconds

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
