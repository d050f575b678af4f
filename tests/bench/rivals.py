"""How late and how often 1,000 schedules fire with two processes, beside APScheduler and procrastinate: `python -m tests.bench.rivals`.

All schedules are due at one instant, every 20 s, twice. Each side only admits: nobody executes jobs. A firing is as late as the
commit that makes its row visible (track_commit_timestamp). One that is not there at the end counts with the time it was waited for.
Ours know no seconds: their next occurrence is written as an instant, which the running schedulers find by themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import asyncpg
import msgspec
from tests.bench.crowd import make_crowd
from tests.bench.support import bench_database, percentile

from autopilot.local.processes import Child
from autopilot.storage.database import Database

SCHEDULES = 1_000
PERIOD_S = 20
FIRINGS = 2
PROCESSES = 2
WINDOW_S = 35.0  # from the first firing on


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of those compared.

    `prepare` is given the first firing, which is at least `ready_s` ahead. `fired` selects schedule, planned and committed;
    `again` writes the next firing where it does not follow by itself.
    """

    name: str
    ready_s: float
    command: tuple[str, ...]
    prepare: Callable[[str, datetime], Awaitable[None]]
    fired: str
    again: str | None = None


def _rival(module: str) -> Callable[[str, datetime], Awaitable[None]]:
    async def prepare(url: str, first: datetime) -> None:
        program = (sys.executable, "-m", f"tests.bench.{module}", "prepare", url, first.isoformat())
        made = await asyncio.create_subprocess_exec(*program, stderr=asyncio.subprocess.DEVNULL)
        assert await made.wait() == 0, f"{module} could not be prepared"

    return prepare


async def _prepare_ours(url: str, first: datetime) -> None:
    async with Database(url, name="bench", max_size=1) as database:
        await make_crowd(url, database, rules=SCHEDULES // 10, each=10)
        async with database.connection() as conn:
            await conn.execute("UPDATE autopilot_trigger SET next_run_at = $1", first)


SIDES = (
    Side(
        name="ours",
        ready_s=12,
        command=("-m", "autopilot.scheduler"),
        prepare=_prepare_ours,
        fired="SELECT trigger_id::text AS schedule, planned_at AS planned, pg_xact_commit_timestamp(xmin) AS committed "
        "FROM autopilot_run",
        again="UPDATE autopilot_trigger SET next_run_at = $1",
    ),
    Side(
        name=f"procrastinate {version('procrastinate')}",
        ready_s=12,
        command=("-m", "tests.bench.rival_procrastinate", "run"),
        prepare=_rival("rival_procrastinate"),
        fired="SELECT args ->> 'schedule' AS schedule, to_timestamp((args ->> 'timestamp')::float8) AS planned, "
        "pg_xact_commit_timestamp(xmin) AS committed FROM procrastinate_jobs",
    ),
    Side(
        name=f"APScheduler {version('apscheduler')}",
        ready_s=35,
        command=("-m", "tests.bench.rival_apscheduler", "run"),
        prepare=_rival("rival_apscheduler"),
        fired="SELECT schedule_id AS schedule, scheduled_fire_time AS planned, pg_xact_commit_timestamp(xmin) AS committed "
        "FROM jobs",
    ),
)


async def _measure(side: Side) -> None:
    async with bench_database(track_commit_timestamp="on") as url:
        first = _boundary(side.ready_s)
        await side.prepare(url, first)
        conn: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url)
        try:
            async with _processes(side, url):
                late = datetime.now(UTC) - first
                rows = await _observe(side, conn, first)
        finally:
            await conn.close()
    if late > timedelta():
        print(f"  {side.name}: preparing took {late.total_seconds():.0f} s too long")
    _tell(side, first, rows)


def _boundary(ahead_s: float) -> datetime:
    """The first instant for firing that is at least so far ahead."""
    seconds = math.ceil((datetime.now(UTC).timestamp() + ahead_s) / PERIOD_S) * PERIOD_S
    return datetime.fromtimestamp(seconds, UTC)


@asynccontextmanager
async def _processes(side: Side, url: str) -> AsyncIterator[None]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("AUTOPILOT_")}
    env |= {"AUTOPILOT_DATABASE_URL": url, "AUTOPILOT_LOG_LEVEL": "error"}
    with tempfile.TemporaryDirectory(prefix="autopilot-bench-") as folder:
        program = (sys.executable, *side.command, *(() if side.again else (url,)))
        children = [Child(f"rival-{n}", program, Path(folder), env=env) for n in range(PROCESSES)]
        for child in children:
            child.start()
        try:
            yield
        finally:
            for child in children:
                child.kill()


async def _observe(
    side: Side, conn: asyncpg.Connection[asyncpg.Record], first: datetime
) -> list[asyncpg.Record]:
    """The firings of the two instants, when all are there or the time is up."""
    instants = [first + timedelta(seconds=PERIOD_S * n) for n in range(FIRINGS)]
    sql = f"SELECT * FROM ({side.fired}) f WHERE planned >= $1 AND planned < $2"
    until = instants[-1] + timedelta(seconds=PERIOD_S)
    written = 1
    while True:
        await asyncio.sleep(1)
        rows = await conn.fetch(sql, first, until)
        if len(rows) >= FIRINGS * SCHEDULES or datetime.now(UTC) > first + timedelta(seconds=WINDOW_S):
            return rows
        if side.again and written < FIRINGS and len(rows) >= written * SCHEDULES:
            await conn.execute(side.again, instants[written])
            written += 1


def _tell(side: Side, first: datetime, rows: list[asyncpg.Record]) -> None:
    firings = {(row["schedule"], round((row["planned"] - first).total_seconds()) // PERIOD_S) for row in rows}
    missing = [
        max(0.0, WINDOW_S - PERIOD_S * n)
        for n in range(FIRINGS)
        for _ in range(SCHEDULES - sum(1 for _, instant in firings if instant == n))
    ]
    late = [(row["committed"] - row["planned"]).total_seconds() for row in rows]
    values = late + missing
    print(
        f"{side.name}: {percentile(values, 0.5):.2f} s late at p50, {percentile(values, 0.99):.2f} s at p99; "
        f"of {FIRINGS * SCHEDULES:,} firings {len(rows) - len(firings)} twice, {len(missing)} not within the time",
        flush=True,
    )


async def measure() -> None:
    """One line for each, one after the other."""
    print(f"{SCHEDULES:,} schedules due at one instant, {PROCESSES} processes, admitted:")
    for side in SIDES:
        await _measure(side)


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
