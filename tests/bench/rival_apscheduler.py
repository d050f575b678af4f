"""APScheduler as a process of the comparison: `python -m tests.bench.rival_apscheduler prepare|run URL [first firing]`."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime

from apscheduler import AsyncScheduler, SchedulerRole
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.psycopg import PsycopgEventBroker
from apscheduler.triggers.cron import CronTrigger
from sqlalchemy.ext.asyncio import create_async_engine
from tests.bench.rivals import PERIOD_S, SCHEDULES

AT_ONCE = 10


def noop() -> None:
    """What every schedule runs; no process of the comparison executes jobs."""


async def _prepare(scheduler: AsyncScheduler, first: datetime) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def add(number: int) -> None:
        async with free:
            trigger = CronTrigger(second=f"*/{PERIOD_S}", start_time=first)
            await scheduler.add_schedule(noop, trigger, id=str(number))

    await asyncio.gather(*(add(number) for number in range(SCHEDULES)))


async def main(what: str, url: str, *more: str) -> None:
    """Add the schedules, or turn due ones into jobs until the process is ended."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    store, broker = SQLAlchemyDataStore(engine), PsycopgEventBroker(url)
    async with AsyncScheduler(store, broker, role=SchedulerRole.scheduler) as scheduler:
        if what == "prepare":
            await _prepare(scheduler, datetime.fromisoformat(more[0]))
        else:
            await scheduler.run_until_stopped()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
