"""A new release of the zone data moves the next occurrences of all schedules, once, whatever replicas of both releases run (S7.9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from autopilot.domain import cron
from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import TriggerId
from autopilot.kit import log
from autopilot.kit.faults import place_of
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import schedule_zones
from autopilot.storage.database import Database
from autopilot.storage.executions import Scope
from autopilot.storage.schedule_zones import OutdatedTrigger, Recomputed

_logger = log.get_logger()

JOB_NAME: Final = "zone_data_update"
# A page is computed in one go on the loop that the schedule runs on too, so it takes a few milliseconds at most.
BATCH: Final = 100


def zones_job(database: Database) -> JobSpec:
    """The job, hourly, with the version of the zone data as its scope: only newer data replaces older (HAZARDS 25).

    It also gives schedules that were stopped another try: a replica with older data may not know a new zone.

    Hourly, since a replica of the release before may go on saving schedules with its older data for a while.
    """

    async def scopes() -> Sequence[Scope]:
        return (Scope("tzdata", cron.tzdata_version()),)

    async def handle(run: JobRun) -> dict[str, Any]:
        return {"recomputed": await recompute_all(database, run.scope.id)}

    return JobSpec(
        name=JOB_NAME,
        handler=handle,
        scopes=scopes,
        cadence=timedelta(hours=1),
        run_timeout=timedelta(minutes=10),
        stale_timeout=timedelta(minutes=11),
        stale_reentry=True,
        max_attempts=3,
    )


async def recompute_all(database: Database, version: str) -> int:
    """Compute every schedule anew that was computed with older data than `version`; how many were written."""
    after, count = TriggerId(UUID(int=0)), 0
    while True:
        async with database.connection() as conn:
            outdated = await schedule_zones.list_outdated(conn, version, after, BATCH)
            if outdated:
                found = [one for one in map(_recompute, outdated) if one is not None]
                count += await schedule_zones.recompute(conn, version, found)
        if len(outdated) < BATCH:
            return count
        after = outdated[-1].id


def _recompute(trigger: OutdatedTrigger) -> Recomputed | None:
    try:
        schedule, zone = cron.parse(trigger.cron), cron.zone(trigger.timezone)
        return Recomputed(was=trigger, next_run_at=cron.next_after(schedule, zone, trigger.now))
    except InvalidValue as error:
        if trigger.next_run_at is None:
            return None  # stopped before, and still for a reason
        return Recomputed(was=trigger, next_run_at=None, error=f"{error.field}: {error.message}")
    except Exception as error:  # noqa: BLE001 - per-item isolation: when it comes due the schedule job stops it, with its error
        _logger.warning("recompute_failed", trigger_id=str(trigger.id), where=place_of(error))
        return None
