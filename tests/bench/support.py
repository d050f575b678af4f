"""What the benchmarks share: a durable Postgres of their own, a migrated database, and pairs measured turn about."""

from __future__ import annotations

import asyncio
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from autopilot.local.postgres import PostgresServer
from autopilot.storage.migrate import upgrade

Measure = Callable[[], Awaitable[float]]


@asynccontextmanager
async def bench_database(**settings: str) -> AsyncIterator[str]:
    """The URL of a fresh migrated database on a durable server (fsync and synchronous_commit on), gone afterwards.

    Also after SIGTERM, as when a time limit ends the benchmark: its server must not outlive it.
    """
    measuring = asyncio.current_task()
    assert measuring is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    with tempfile.TemporaryDirectory(prefix="autopilot-bench-") as folder:
        Path(folder).chmod(0o755)
        given = {"shared_buffers": "512MB", "max_wal_size": "4GB", **settings}
        server = PostgresServer(Path(folder) / "postgres", settings=given)
        await asyncio.to_thread(server.start)
        try:
            await upgrade(server.url)
            yield server.url
        finally:
            await asyncio.to_thread(server.stop)


async def truncate(url: str, *tables: str) -> None:
    """Empty tables between rounds and let the server settle, so that no round pays for the one before."""
    conn = await asyncpg.connect(url)
    try:
        for table in tables:
            await conn.execute(f"TRUNCATE {table}")
        await conn.execute("VACUUM ANALYZE")
        await conn.execute("CHECKPOINT")
    finally:
        await conn.close()


async def rates_in_turn(ours: Measure, theirs: Measure, rounds: int) -> tuple[list[float], list[float]]:
    """Both measured `rounds` times, turn about: what else the machine does falls on both."""
    pairs = [(await ours(), await theirs()) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def print_ratio(name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, rival: str) -> None:
    """One line: both medians, and the ratio ours ÷ theirs pair by pair as min, median and max."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{name}: {statistics.median(ours):,.0f} {unit}, {rival} {statistics.median(theirs):,.0f} {unit}; "
        f"ratio {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f}, {len(ratios)} pairs)"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share (0 to 1) of the sorted values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
