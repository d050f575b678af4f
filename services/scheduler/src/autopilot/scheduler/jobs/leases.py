"""Tasks whose runtime was lost, and tasks of bare runs that nobody claimed in time (S7.13, S11.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import wake_dispatch, wake_runtime
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.states import FailureKind
from autopilot.engine.finish import Ended, expire_task, lose_task
from autopilot.kit import log, metrics
from autopilot.kit.faults import place_of
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import lease_sweeps
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention
from autopilot.storage.lease_sweeps import SweptTask

_logger = log.get_logger()
_recovered = metrics.counter(
    "tasks_recovered_total", "Tasks taken from lost runtimes or expired, by outcome", ["outcome"]
)

JOB_NAME: Final = "task_lease_recovery"
BATCH: Final = 200
LOST_TEXT: Final = "the runtime that held the task was lost"

_List = Callable[[Conn, "SweptTask | None", int], Awaitable[list[SweptTask]]]
_End = Callable[[Conn, SweptTask], Awaitable[Ended]]


class _Tally(msgspec.Struct, kw_only=True):
    requeued: int = 0
    failed: int = 0
    expired: int = 0
    errors: int = 0


def lease_job(database: Database, bus: Bus) -> JobSpec:
    """The job, every 15 seconds: with a task's lease of 30 a lost runtime's work is free again within a minute."""

    async def handle(_run: JobRun) -> dict[str, Any]:
        return await recover_tasks(database, bus)

    return JobSpec(
        name=JOB_NAME,
        handler=handle,
        cadence=timedelta(seconds=15),
        run_timeout=timedelta(seconds=60),
        stale_timeout=timedelta(seconds=90),
        heartbeat_interval=timedelta(seconds=15),
        stale_reentry=True,
    )


async def recover_tasks(database: Database, bus: Bus) -> dict[str, Any]:
    """Recover and expire whatever is due, each task in a transaction of its own; how many of each."""
    tally = _Tally()
    await _sweep(database, bus, tally, lease_sweeps.list_lost_tasks, _lose)
    await _sweep(database, bus, tally, lease_sweeps.list_expired_tasks, _expire)
    return msgspec.structs.asdict(tally)


async def _lose(conn: Conn, task: SweptTask) -> Ended:
    return await lose_task(conn, task.id, LOST_TEXT, FailureKind.RUNTIME_LOST)


async def _expire(conn: Conn, task: SweptTask) -> Ended:
    return await expire_task(conn, task.id)


async def _sweep(database: Database, bus: Bus, tally: _Tally, find: _List, end: _End) -> None:
    after: SweptTask | None = None
    while True:
        async with database.connection() as conn:
            tasks: Sequence[SweptTask] = await find(conn, after, BATCH)
        for task in tasks:
            await _sweep_one(database, bus, tally, task, end)
        if len(tasks) < BATCH:
            return
        after = tasks[-1]


async def _sweep_one(database: Database, bus: Bus, tally: _Tally, task: SweptTask, end: _End) -> None:
    try:
        ended = await database.transact(lambda conn: end(conn, task))
    except InfrastructureError as error:
        if not isinstance(error, Contention):
            raise
        tally.errors += 1  # it stays due and comes again with the next plan
        return
    except Exception as error:  # noqa: BLE001 - per-item isolation: one task harms no other
        _logger.warning("task_recovery_failed", task_id=str(task.id), where=place_of(error))
        tally.errors += 1
        return
    if not ended.changed:
        return
    outcome = "requeued" if ended.retry else ended.status.value
    if outcome == "requeued":
        tally.requeued += 1
    elif outcome == "expired":
        tally.expired += 1
    else:
        tally.failed += 1
    _recovered.labels(outcome).inc()
    _logger.info("task_recovered", task_id=str(task.id), outcome=outcome)
    if ended.released:
        bus.wake(wake_dispatch)
    if ended.retry and task.runtime_id is not None:
        bus.wake(wake_runtime(task.runtime_id))
