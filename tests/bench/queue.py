"""What the length of the queue and an hour of work cost: `python -m tests.bench.queue`.

A claim of 100 runs, with all that is judged of them, among 1,000 pending and among 1,000,000. Then 36,000 runs, an hour at ten a second,
admitted and dispatched in short turns with autovacuum as busy as an hour would have it: how large the queue's files and how many its
dead rows are after a third of it, and at the end.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import asyncpg
from tests.bench.support import bench_database, truncate
from tests.support.dispatching import admit, drain, execute, fetch, firing, worker
from tests.support.rules import make_autopilot, make_setting, set_runtime

from autopilot.domain.ids import AutopilotId, LeaseToken
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import random_token
from autopilot.storage import pending
from autopilot.storage.database import Database

SIZES = (1_000, 1_000_000)
CLAIMS = 9  # of 100: the shorter queue holds no more
HOUR = 36_000
TURN = 600
TABLES = "autopilot_run, dispatch_queue, dispatch_deferred, issue, agent_task, run_event_outbox, run_event"

_FILL = """
SET session_replication_role = replica;
WITH runs AS (
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, execution_mode, rule_version_id, rule_version, accountable_id,
           attribution_source)
    SELECT ('01a20000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, a.workspace_id, a.id, 'api', 'pending', a.execution_mode, a.version_id, a.version, a.creator_id, 'rule_owner'
      FROM autopilot a, generate_series(1, {count}) i
 RETURNING id, autopilot_id
)
INSERT INTO dispatch_queue (run_id, autopilot_id) SELECT id, autopilot_id FROM runs ORDER BY id;
SET session_replication_role = origin;
VACUUM ANALYZE dispatch_queue;
VACUUM ANALYZE autopilot_run;
"""


async def _claim_ms(url: str, database: Database, count: int) -> tuple[float, float]:
    """The median time of a claim among so many, and that of the quickest."""
    await truncate(url, TABLES)
    filling = await asyncpg.connect(url)
    try:
        for statement in _FILL.format(count=count).strip().split(";\n"):
            await filling.execute(statement.rstrip(";"), timeout=600)
    finally:
        await filling.close()
    times = []
    async with database.connection() as conn:
        start = 0
        for _ in range(CLAIMS):
            began = time.perf_counter()
            claim = await pending.claim(
                conn,
                token=LeaseToken(random_token()),
                limit=100,
                max_bytes=8 << 20,
                lease_s=30,
                pace_per_min=60,
                start=start,
            )
            times.append((time.perf_counter() - began) * 1000)
            assert len(claim.entries) == 100
            start = claim.next_seq or 0
    return statistics.median(times), min(times)


async def _hour(url: str, database: Database, autopilot: AutopilotId, count: int) -> tuple[float, int]:
    """Admit and dispatch so many in turns; megabytes of the queue's table and indexes, and dead rows in them."""
    one = worker(database)
    for _ in range(count // TURN):
        await admit(database, [firing(autopilot) for _ in range(TURN)])
        await drain(one)
    [found] = await fetch(
        database,
        """SELECT pg_total_relation_size('dispatch_queue') / 1048576.0 AS megabytes, pg_stat_force_next_flush() AS flushed,
                  pg_stat_get_dead_tuples('dispatch_queue'::regclass) AS dead""",
    )
    return float(found["megabytes"]), int(found["dead"])


async def measure() -> None:
    """Print a line for the claim and one for the hour."""
    async with (
        bench_database(autovacuum_naptime="1s") as url,
        Database(url, name="bench", max_size=4) as database,
    ):
        setting = await make_setting(database)
        autopilot = await make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
        (short, short_best), (long, long_best) = [await _claim_ms(url, database, size) for size in SIZES]
        print(
            f"claim of 100 runs: {short:.1f} ms among {SIZES[0]:,} pending, {long:.1f} ms among {SIZES[1]:,}; ratio {long / short:.2f}"
            f" (medians of {CLAIMS}; the quickest {short_best:.1f} and {long_best:.1f} ms, ratio {long_best / short_best:.2f})",
            flush=True,
        )
        await truncate(url, TABLES)
        await execute(database, "VACUUM FULL dispatch_queue")
        await set_runtime(database, setting.runtime_id)
        third = await _hour(url, database, autopilot.id, HOUR // 3)
        end = await _hour(url, database, autopilot.id, HOUR - HOUR // 3)
    print(
        f"the queue after {HOUR:,} runs: {end[0]:.2f} MB and {end[1]:,} dead rows; after a third of them {third[0]:.2f} MB and {third[1]:,}"
    )


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
