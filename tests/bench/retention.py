"""Runs dispatched a second while old history is deleted, against the same while it is not: `python -m tests.bench.retention`.

The history is 100,000 webhook runs that ended 500 days ago, each with its delivery, body, slot, task and event. One
database, turn about in short stretches, the deletion held still in every other: what else the machine does falls on
both. It goes on in the process and event loop that dispatches, with its usual rests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import asyncpg
from tests.bench.support import bench_database, print_ratio, rates_in_turn, truncate
from tests.support.dispatching import admit, firing, worker
from tests.support.rules import Setting, make_autopilot, make_setting, set_runtime

from autopilot.dispatcher.worker import Worker
from autopilot.domain.ids import AutopilotId
from autopilot.domain.states import ExecutionMode
from autopilot.kit.clock import SystemClock
from autopilot.kit.config import Secret
from autopilot.scheduler.config import SchedulerConfig
from autopilot.scheduler.jobs.retention import delete_old, kept_by
from autopilot.storage.database import Database

OLD: Final = 100_000
PAIRS: Final = 12
LOOPS: Final = 2
BATCH: Final = 250
STEPS: Final = 4
RUNS: Final = (2 * PAIRS + 2) * LOOPS * STEPS * BATCH

_AGE = f"""
SET session_replication_role = replica;
CREATE TEMP TABLE n AS
SELECT i, at, (left(uuid7_floor(at)::text, 24) || lpad(to_hex(i), 12, '0'))::uuid AS id
  FROM generate_series(1, {OLD}) i, LATERAL (SELECT now() - interval '500 days' + i * interval '1 second' AS at) t;
INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, dedupe_key, dedupe_source, signature_status,
       status, headers, response_status, response_body, run_id, received_at, last_attempt_at)
SELECT id, $W, $W, $W, 'github', 'push', i::text, 'delivery_id', 'valid', 'dispatched', '{{}}', 200, '{{}}', id, at, at FROM n;
INSERT INTO webhook_body (delivery_id, body) SELECT id, convert_to(repeat(i::text, 200), 'utf8') FROM n;
INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id, body_sha) SELECT $W, i::text, id, sha256('x') FROM n;
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
       webhook_delivery_id, task_id, accountable_id, attribution_source, created_at, started_at, completed_at)
SELECT id, $W, $W, $W, 'webhook', 'completed', 'run_only', id, 1, id, id, id, 'rule_owner', at, at, at FROM n;
INSERT INTO agent_task (id, workspace_id, agent_id, run_id, prompt, status, finished_at)
SELECT id, $W, $W, id, 'Do.', 'completed', at FROM n;
INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
SELECT $W, i, id, id, id, 'run.done', '{{}}', at FROM n;
INSERT INTO event_head (workspace_id, last_seq, relayed_seq) VALUES ($W, {OLD}, {OLD})
    ON CONFLICT (workspace_id) DO UPDATE SET last_seq = EXCLUDED.last_seq, relayed_seq = EXCLUDED.relayed_seq;
"""


async def _fill(url: str, database: Database, setting: Setting, autopilots: list[AutopilotId]) -> None:
    conn = await asyncpg.connect(url)
    try:
        await conn.execute(_AGE.replace("$W", f"'{setting.workspace_id}'"))
    finally:
        await conn.close()
    for start in range(0, RUNS, 1000):
        await admit(database, [firing(autopilots[n % len(autopilots)]) for n in range(start, start + 1000)])
    await truncate(url)
    await set_runtime(database, setting.runtime_id)


class Gate(SystemClock):
    """The clock by which retention rests, and on which it can be held still between two pages."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.open.wait()


async def _stretch(workers: Sequence[Worker]) -> float:
    """Some batches by each worker; runs a second."""

    async def work(one: Worker) -> None:
        for _ in range(STEPS):
            assert await one.step(), "there is nothing left to dispatch"

    started = time.perf_counter()
    await asyncio.gather(*(work(one) for one in workers))
    return len(workers) * STEPS * BATCH / (time.perf_counter() - started)


async def _measure(database: Database) -> None:
    keep = kept_by(SchedulerConfig(database_url=Secret("postgresql://unused")))
    workers = [worker(database, dispatch_batch_size=BATCH) for _ in range(LOOPS)]
    gate = Gate()
    await _stretch(workers)
    deleting = asyncio.create_task(delete_old(database, keep, clock=gate))
    seconds = 0.0

    async def ours() -> float:
        nonlocal seconds
        gate.open.set()
        started = time.perf_counter()
        rate = await _stretch(workers)
        seconds += time.perf_counter() - started
        gate.open.clear()
        return rate

    beside, alone = await rates_in_turn(ours, lambda: _stretch(workers), PAIRS)
    assert not deleting.done(), "the history was gone before the end"
    deleting.cancel()
    with suppress(asyncio.CancelledError):
        await deleting
    async with database.connection() as conn:
        left: int = await conn.fetchval("SELECT count(*) FROM autopilot_run WHERE completed_at IS NOT NULL")
    print_ratio(f"dispatch while {OLD:,} old runs are deleted", beside, alone, "runs/s", "without")
    print(
        f"  meanwhile {(OLD - left) / seconds:,.0f} old runs/s went, each with its delivery, slot, body, task and event"
    )


async def measure() -> None:
    """Print the ratio, and how fast history went meanwhile."""
    async with bench_database() as url, Database(url, name="bench", max_size=6) as database:
        setting = await make_setting(database)
        modes = (ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY)
        autopilots = [
            (await make_autopilot(database, setting, execution_mode=modes[n % 2])).id for n in range(20)
        ]
        await _fill(url, database, setting, autopilots)
        await _measure(database)


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
