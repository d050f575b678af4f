"""`python -m autopilot.scheduler`: admits runs for due occurrences and runs the housekeeping jobs; `rerun` repeats a plan."""

from __future__ import annotations

import sys

from autopilot.bus import subjects
from autopilot.bus.connection import Bus
from autopilot.kit.lifecycle import Service, run_service
from autopilot.kit.loop import Loop
from autopilot.scheduler import rerun
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.config import SchedulerConfig
from autopilot.scheduler.jobs.failures import failures_job
from autopilot.scheduler.jobs.leases import lease_job
from autopilot.scheduler.jobs.retention import kept_by, retention_job
from autopilot.scheduler.jobs.schedule import ScheduleJob
from autopilot.scheduler.jobs.statistics import statistics_job
from autopilot.scheduler.jobs.zones import zones_job
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import Registry
from autopilot.storage.database import Database
from autopilot.storage.schema_version import require_ready

_SESSION = {"lock_timeout": "500", "statement_timeout": "10000"}
# Leases are kept and the schedule goes on while jobs hold every connection that they may have.
_SCHEDULE_CONNECTIONS = 2
_LEASE_CONNECTIONS = 4


async def build(service: Service, config: SchedulerConfig) -> None:
    """Put the scheduler together."""

    async def pool(name: str, size: int) -> Database:
        return await service.resource(
            Database.configured(config, name=name, max_size=size, settings=_SESSION)
        )

    scheduling = await pool("scheduler-plans", _SCHEDULE_CONNECTIONS)
    leasing = await pool("scheduler-leases", _LEASE_CONNECTIONS)
    working = await pool("scheduler-jobs", config.db_pool_max)
    bus = await service.resource(Bus(config.nats_url, name="scheduler"))
    service.health.check("database", lambda: require_ready(scheduling))
    service.health.degraded("nats", lambda: None if bus.state == "connected" else bus.state)

    claimant = Claimant(leasing)
    schedule = ScheduleJob(
        scheduling,
        wake_dispatch=lambda: bus.wake(subjects.wake_dispatch),
        batch=config.schedule_batch_size,
        runner_id=claimant.runner_id,
    )
    scheduled = service.loop(Loop("schedule", schedule.step, poll_s=config.poll_interval_s))
    bus.on_wake(subjects.wake_schedule, lambda _subject: scheduled.wake())

    registry = Registry()
    registry.register(lease_job(working, bus))
    registry.register(zones_job(working))
    registry.register(failures_job(working, config.health_limits))
    registry.register(statistics_job(working))
    registry.register(retention_job(working, kept_by(config), tuple(registry)))
    for spec in registry:
        job = await service.resource(RunningJob(spec, claimant, leasing))
        service.loop(Loop(f"job-{spec.name}", job.tick, poll_s=job.poll_s))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rerun"]:
        sys.exit(rerun.main(sys.argv[2:]))
    sys.exit(run_service("scheduler", SchedulerConfig, build))
