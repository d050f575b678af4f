"""procrastinate's periodic tasks as a process of the comparison: `python -m tests.bench.rival_procrastinate prepare|run URL`."""

from __future__ import annotations

import asyncio
import sys

import procrastinate
from tests.bench.rivals import PERIOD_S, SCHEDULES


async def noop(timestamp: int, schedule: int) -> None:
    """What every schedule runs; no process of the comparison executes jobs."""


def _app(url: str) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    task = app.task(name="noop", queue="held")(noop)
    for number in range(SCHEDULES):
        every = app.periodic(
            cron=f"* * * * * */{PERIOD_S}", periodic_id=str(number), task_kwargs={"schedule": number}
        )
        every(task)
    return app


async def main(what: str, url: str, *_: str) -> None:
    """Install the schema, or defer due tasks until the process is ended."""
    app = _app(url)
    async with app.open_async():
        if what == "prepare":
            await app.schema_manager.apply_schema_async()
        else:
            await app.run_worker_async(queues=["no such queue"], install_signal_handlers=False)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
