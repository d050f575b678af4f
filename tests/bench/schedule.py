"""100,000 due plans admitted by two schedulers, against two that claim them one by one: `python -m tests.bench.schedule`.

The schedules of 10,000 rules are due at one instant. Ours are two processes. The other side takes one due trigger a transaction,
on two connections, and writes the same rows by prepared statements; it judges nothing (no readiness, permission, attribution,
overlap), which ours does. It is given a sample of the same triggers, and its rate is compared. Turn about on one database.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import asyncpg
from tests.bench.crowd import make_crowd
from tests.bench.support import bench_database, percentile, print_ratio, rates_in_turn, truncate
from tests.support.rules import set_runtime

from autopilot.domain.ids import RuntimeId
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.jobs.schedule import ScheduleJob
from autopilot.storage.database import Database

RULES = 10_000
EACH = 10
PLANS = RULES * EACH
SAMPLE = 2_000
SCHEDULERS = 2
ROUNDS = 3
BATCH = 500  # what the service does when it is told nothing else
TABLES = "autopilot_run, dispatch_queue, dispatch_deferred, sys_cron_executions, run_event_outbox, run_event"

_MAKE_DUE = """
    UPDATE autopilot_trigger t
       SET next_run_at = CASE WHEN n.number <= $1 THEN date_trunc('minute', clock_timestamp()) ELSE 'infinity' END
      FROM (SELECT id, row_number() OVER (ORDER BY id) AS number FROM autopilot_trigger) n
     WHERE n.id = t.id"""
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


class Bench:
    """The crowd in its database, and what the last round of ours was like."""

    def __init__(self, url: str, database: Database, runtime_id: RuntimeId) -> None:
        self.url = url
        self.waits_s: list[float] = []
        self.shares: list[list[int]] = []
        self._database = database
        self._runtime_id = runtime_id

    async def ours(self) -> float:
        """Plans a second of two processes."""
        await self._make_due(PLANS)
        workers = [await _start_worker(self.url) for _ in range(SCHEDULERS)]
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        told = [await worker.communicate() for worker in workers]
        seconds = time.perf_counter() - started
        assert [worker.returncode for worker in workers] == [0] * SCHEDULERS, told
        self.waits_s, share = await self._check(PLANS)
        self.shares.append(share)
        return PLANS / seconds

    async def one_by_one(self) -> float:
        """Plans a second of two connections that take one plan a transaction."""
        await self._make_due(SAMPLE)
        started = time.perf_counter()
        await asyncio.gather(*(_one_by_one(self.url) for _ in range(SCHEDULERS)))
        seconds = time.perf_counter() - started
        await self._check(SAMPLE)
        return SAMPLE / seconds

    async def _make_due(self, count: int) -> None:
        async with self._database.connection() as conn:
            await conn.execute(_MAKE_DUE, count)
        await truncate(self.url, TABLES)
        await set_runtime(self._database, self._runtime_id)

    async def _check(self, count: int) -> tuple[list[float], list[int]]:
        """How much later than the first each was admitted, and each runner's plans; every plan has exactly one run."""
        async with self._database.connection() as conn:
            runs = await conn.fetch(
                "SELECT trigger_id, created_at FROM autopilot_run WHERE status = 'pending'"
            )
            entries = await conn.fetchval("SELECT count(*) FROM dispatch_queue")
            shares = await conn.fetch(
                "SELECT count(*) AS plans FROM sys_cron_executions WHERE state = 'SUCCESS' GROUP BY runner_id"
            )
        doubles = len(runs) - len({run["trigger_id"] for run in runs})
        plans = [share["plans"] for share in shares]
        assert (len(runs), doubles, entries, sum(plans)) == (count, 0, count, count), "lost or doubled"
        first = min(run["created_at"] for run in runs)
        return [(run["created_at"] - first).total_seconds() for run in runs], plans


async def _start_worker(url: str) -> asyncio.subprocess.Process:
    """A scheduler in a process of its own that is connected and waits for a word to begin."""
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.schedule", url), stdin=pipe, stdout=pipe
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    return worker


async def _work(url: str) -> None:
    async with Database(url, name="bench", max_size=2) as database:
        job = ScheduleJob(database, wake_dispatch=lambda: None, batch=BATCH)
        await database.ping()
        print("ready", flush=True)
        sys.stdin.readline()
        while (said := await job.step()) is True or (said is not None and said < 1):
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


def _told(shares: Sequence[Sequence[int]]) -> str:
    return ", ".join(" : ".join(f"{plans / PLANS:.0%}" for plans in sorted(share)) for share in shares)


async def measure() -> None:
    """Print the ratio, the shares of the two schedulers, and how long the last of the herd waits."""
    async with (
        bench_database() as url,
        Database(url, name="bench", max_size=4, settings={"statement_timeout": "60000"}) as database,
    ):
        setting = await make_crowd(url, database, rules=RULES, each=EACH)
        bench = Bench(url, database, setting.runtime_id)
        ours, theirs = await rates_in_turn(bench.ours, bench.one_by_one, ROUNDS)
    name = f"schedule, {PLANS:,} plans due at once, {SCHEDULERS} schedulers"
    print_ratio(name, ours, theirs, "plans/s", "one plan a transaction")
    print(f"  shares {_told(bench.shares)}, no plan lost or doubled", end="; ")
    print(f"half wait {percentile(bench.waits_s, 0.5):.1f} s, the last {max(bench.waits_s):.1f} s")


def main() -> None:
    """Run the benchmark, or be one of its schedulers."""
    if len(sys.argv) > 1 and __name__ == "__main__":
        asyncio.run(_work(sys.argv[1]))
    else:
        asyncio.run(measure())


if __name__ == "__main__":
    main()
