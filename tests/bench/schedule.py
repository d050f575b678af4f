"""Due plans admitted a second against claiming them one by one, on the same database: `python -m tests.bench.schedule`.

10,000 triggers of 100 rules are due at once. The other side takes one due trigger a transaction and writes the same rows by
prepared statements; it judges nothing (no readiness, permission, attribution, overlap), which ours does. One loop each, turn about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
from tests.bench.support import bench_database, percentile, print_ratio, rates_in_turn, truncate
from tests.support.rules import make_autopilot, make_schedule_trigger, make_setting, set_runtime

from autopilot.domain.ids import RuntimeId
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.jobs.schedule import ScheduleJob
from autopilot.storage.database import Database

PLANS = 10_000
RULES = 100
ROUNDS = 3
BATCH = 500
TABLES = "autopilot_run, dispatch_queue, dispatch_deferred, sys_cron_executions, run_event_outbox, run_event"

_MAKE = """
    INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone,
           catch_up, tzdata_version)
    SELECT gen_random_uuid(), workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone, catch_up,
           tzdata_version
      FROM autopilot_trigger, generate_series(2, $1)"""
_MAKE_DUE = "UPDATE autopilot_trigger SET next_run_at = date_trunc('minute', clock_timestamp())"

_TAKE_ONE = """
    SELECT t.id, t.workspace_id, t.autopilot_id, t.next_run_at, t.published_by, a.execution_mode, a.version, a.version_id
      FROM autopilot_trigger t JOIN autopilot a ON a.id = t.autopilot_id
     WHERE t.next_run_at <= statement_timestamp() ORDER BY t.next_run_at LIMIT 1 FOR NO KEY UPDATE OF t SKIP LOCKED"""
_ADD_RUN = """
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id,
           rule_version, planned_at, accountable_id, attribution_source)
    VALUES ($1, $2, $3, $4, 'schedule', 'pending', $5, $6, $7, $8, $9, 'trigger_owner')"""
_ADD_ENTRY = "INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) VALUES ($1, $2, $3)"
_ADD_EXECUTION = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at, finished_at, schedule_rev, result)
    VALUES ($1, 'autopilot_schedule_dispatch', 'trigger', $2, $3, 'SUCCESS', 3, true, $4, $4, now(), now(), 1,
            '{"outcome": "admitted"}')"""
_MOVE_ON = "UPDATE autopilot_trigger SET next_run_at = $2::timestamptz + interval '1 year' WHERE id = $1"


async def _measure(
    url: str, database: Database, runtime_id: RuntimeId, work: Callable[[], Awaitable[None]]
) -> tuple[float, list[float]]:
    """Plans a second, and how much later than the first each was admitted."""
    async with database.connection() as conn:
        await conn.execute(_MAKE_DUE)
    await truncate(url, TABLES)
    await set_runtime(database, runtime_id)
    started = time.perf_counter()
    await work()
    seconds = time.perf_counter() - started
    async with database.connection() as conn:
        runs = await conn.fetch("SELECT created_at FROM autopilot_run WHERE status = 'pending'")
        finished = await conn.fetchval("SELECT count(*) FROM sys_cron_executions WHERE state = 'SUCCESS'")
        entries = await conn.fetchval("SELECT count(*) FROM dispatch_queue")
    assert (len(runs), finished, entries) == (PLANS, PLANS, PLANS), f"{len(runs)} runs of {PLANS}"
    first = min(run["created_at"] for run in runs)
    return PLANS / seconds, [(run["created_at"] - first).total_seconds() for run in runs]


async def _in_batches(database: Database) -> None:
    job = ScheduleJob(database, wake_dispatch=lambda: None, batch=BATCH)
    while await job.step() is True:
        pass


async def _one_by_one(url: str) -> None:
    conn = await asyncpg.connect(url)
    runner = random_token()
    try:
        while await _admit_one(conn, runner):
            pass
    finally:
        await conn.close()


async def _admit_one(conn: asyncpg.Connection[asyncpg.Record], runner: object) -> bool:
    async with conn.transaction():
        row = await conn.fetchrow(_TAKE_ONE)
        if row is None:
            return False
        run_id, planned = uuid7(), row["next_run_at"]
        await conn.execute(
            _ADD_RUN,
            *(run_id, row["workspace_id"], row["autopilot_id"], row["id"], row["execution_mode"]),
            *(row["version_id"], row["version"], planned, row["published_by"]),
        )
        await conn.execute(_ADD_ENTRY, run_id, row["autopilot_id"], row["id"])
        await conn.execute(_ADD_EXECUTION, uuid7(), str(row["id"]), planned, runner)
        await conn.execute(_MOVE_ON, row["id"], planned)
    return True


async def measure() -> None:
    """Print the ratio, and how long the last of the herd waits."""
    async with bench_database() as url, Database(url, name="bench", max_size=4) as database:
        setting = await make_setting(database)
        for _ in range(RULES):
            autopilot = await make_autopilot(database, setting)
            await make_schedule_trigger(database, setting, autopilot.id, "0 0 1 1 *")
        async with database.connection() as conn:
            await conn.execute(_MAKE, PLANS // RULES)
        waits: list[float] = []

        async def batches() -> float:
            rate, waits[:] = await _measure(url, database, setting.runtime_id, lambda: _in_batches(database))
            return rate

        async def singly() -> float:
            return (await _measure(url, database, setting.runtime_id, lambda: _one_by_one(url)))[0]

        ours, theirs = await rates_in_turn(batches, singly, ROUNDS)
    print_ratio(f"schedule, {PLANS:,} plans due at once", ours, theirs, "plans/s", "one plan a transaction")
    print(f"  in batches of {BATCH} half wait {percentile(waits, 0.5):.2f} s, the last {max(waits):.2f} s")


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
