"""Runs counted by rule and hour; each hour counts, also one that an outage kept from being counted in time (S7.13)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from autopilot.scheduler.spec import CatchUpMode, JobRun, JobSpec
from autopilot.storage import statistics
from autopilot.storage.database import Database

JOB_NAME: Final = "run_statistics"
HOUR: Final = timedelta(hours=1)


def statistics_job(database: Database) -> JobSpec:
    """The job: a plan counts the hour that ends with it, five minutes later, when what ended in it has been committed."""

    async def handle(run: JobRun) -> dict[str, Any]:
        return await count_hour(database, run.plan_time - HOUR)

    return JobSpec(
        name=JOB_NAME,
        handler=handle,
        cadence=HOUR,
        schedule_delay=timedelta(minutes=5),
        catch_up=CatchUpMode.EVERY_PLAN,
        # A day less than the shortest time that runs may be kept: no hour is counted anew when some of its runs are gone.
        catch_up_window=timedelta(days=30),
        max_plans_per_tick=24,
        stale_reentry=True,
        max_attempts=3,
    )


async def count_hour(database: Database, hour: datetime) -> dict[str, Any]:
    """Count the hour that begins then, and the one before once more, for what was committed late (HAZARDS 24)."""
    changed: dict[str, Any] = {}
    for name, begins in (("before", hour - HOUR), ("hour", hour)):
        async with database.connection() as conn:
            changed[name] = await statistics.compute_hour(conn, begins)
    return changed
