"""PgQueuer's worker as a process of the comparison: `python -m tests.bench.rival_pgqueuer URL JOBS`; tells when each job was handled."""

from __future__ import annotations

import sys
import time

import asyncpg
import uvloop
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.models import Job


async def main(url: str, jobs: int) -> None:
    """Handle so many jobs, whose payload is a number, and print for each its number and the monotonic time."""
    async with asyncpg.create_pool(url, min_size=2, max_size=6) as pool:
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
        handled: list[tuple[str, float]] = []

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            handled.append(((job.payload or b"").decode(), time.perf_counter()))
            if len(handled) == jobs:
                manager.shutdown.set()

        print("ready", flush=True)
        await manager.run()
        for number, at in handled:
            print(number, at)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
