"""How late a scheduler process admits what is due and retries what had failed: `python -m tests.bench.precision`.

One idle process without NATS, with all its jobs; one occurrence after the other comes due, no two at a time. Lateness is from the
plan's second to the execution written for it, by the database's clock.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.bench.support import bench_database, percentile
from tests.support.precision import Spread
from tests.support.rules import make_setting

from autopilot.local.ports import free_port
from autopilot.local.services import BY_NAME, ServiceProcess
from autopilot.storage.database import Database

PLANS = 150
RETRIES = 50
EVERY_S = 0.113  # no divisor of the poll interval, so that every distance from a poll occurs
POLL_S = 1.0
WARM = 10  # a process's first plans pay for its connections and statements


async def measure(folder: Path) -> None:
    """Print one line for occurrences and retries together."""
    async with bench_database() as url, Database(url, name="bench", max_size=2) as database:
        spread = Spread(database, await make_setting(database), plans=PLANS, retries=RETRIES)
        await spread.make()
        env = {**os.environ, "AUTOPILOT_DATABASE_URL": url, "AUTOPILOT_POLL_INTERVAL_S": str(POLL_S)}
        env.pop("AUTOPILOT_NATS_URL", None)
        process = ServiceProcess(
            BY_NAME["scheduler"], 0, folder, env=env, health_port=free_port(), http_port=None
        )
        process.start()
        try:
            await asyncio.to_thread(process.wait_ready)
            await spread.begin(after_s=2, every_s=EVERY_S)
            late_ms = await spread.lateness_ms(timeout_s=60)
            await asyncio.to_thread(process.stop)
        finally:
            process.kill()
    first, warm = max(late_ms[:WARM]), late_ms[WARM:]
    told = ", ".join(f"p{share * 100:g} {percentile(warm, share):.1f}" for share in (0.5, 0.9, 0.99))
    print(
        f"lateness of {PLANS} occurrences and {RETRIES} retries, ms: {told}, max {max(warm):.1f}; worst of the first {WARM} "
        f"after the start {first:.1f} (poll interval {POLL_S:g} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)"
    )


def main() -> None:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
