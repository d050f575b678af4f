"""History that is old enough goes, a little at a time, and what something still needs stays (S7.13, S7.17).

Each kind is swept in pages of its own transaction, and the kinds take turns, so that a long backlog of one never
starves another. What is left when the time is over is found again the next day.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import WorkspaceId
from autopilot.kit import log, metrics, points
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.config import ConfigError
from autopilot.kit.faults import place_of
from autopilot.scheduler.config import SchedulerConfig
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import retention
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention

_logger = log.get_logger()
_deleted = metrics.counter("retention_rows_deleted_total", "Rows of old history deleted, by kind", ["kind"])

JOB_NAME: Final = "history_retention"
BATCH: Final = 500
RUN_TIMEOUT: Final = timedelta(hours=4)
TIME: Final = timedelta(hours=4) - timedelta(minutes=5)
# After each page, so many times as long as it took: history goes in a sixth of the time of one connection, and the
# busier the database is, the longer it is left alone.
REST: Final = 5.0

_Find = Callable[[Conn, timedelta, UUID, int], Awaitable[list[UUID]]]
_Delete = Callable[[Conn, timedelta, Sequence[UUID]], Awaitable[int]]
_Step: TypeAlias = Callable[[], Awaitable[int | None]]
"""Deletes a page in one transaction; how many rows went, None when there is nothing more to look at."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How long each kind of history is kept. `deliveries` are those without a run; the others go with it."""

    runs: timedelta
    bodies: timedelta
    deliveries: timedelta
    executions: timedelta
    events: timedelta
    statistics: timedelta
    outputs: timedelta
    inbox: timedelta


def kept_by(config: SchedulerConfig) -> Kept:
    """What the settings say."""
    return Kept(
        runs=timedelta(days=config.retain_runs_days),
        bodies=timedelta(days=config.retain_bodies_days),
        deliveries=timedelta(days=config.retain_deliveries_days),
        executions=timedelta(days=config.retain_executions_days),
        events=timedelta(days=config.retain_events_days),
        statistics=timedelta(days=config.retain_statistics_days),
        outputs=timedelta(days=config.retain_outputs_days),
        inbox=timedelta(days=config.retain_inbox_days),
    )


def retention_job(database: Database, keep: Kept, others: Iterable[JobSpec]) -> JobSpec:
    """The job, daily and away from midnight, when schedules crowd. Raises ConfigError where a job catches up over more
    than is kept: its plans would be run again."""
    for spec in others:
        if spec.catch_up_window > min(keep.executions, keep.runs, keep.statistics):
            raise ConfigError(
                [
                    f"AUTOPILOT_RETAIN_*_DAYS is shorter than the {spec.catch_up_window} over which {spec.name} catches up"
                ]
            )

    async def handle(_run: JobRun) -> dict[str, Any]:
        return await delete_old(database, keep)

    return JobSpec(
        name=JOB_NAME,
        handler=handle,
        cadence=timedelta(days=1),
        schedule_delay=timedelta(hours=3),
        run_timeout=RUN_TIMEOUT,
        stale_timeout=RUN_TIMEOUT + timedelta(minutes=10),
        stale_reentry=True,
        max_attempts=3,
    )


async def delete_old(
    database: Database, keep: Kept, *, time: timedelta = TIME, clock: Clock | None = None
) -> dict[str, Any]:
    """Delete what is old enough until nothing is left or the time is over; how much of each kind, and whether all of it.

    A kind that fails leaves the others alone, and its error is raised when they are done.
    """
    clock = clock or SystemClock()
    ends_at = clock.monotonic() + time.total_seconds()
    steps = _steps(database, keep)
    counts = dict.fromkeys(steps, 0)
    failures: list[Exception] = []
    while steps and clock.monotonic() < ends_at:
        for kind, step in list(steps.items()):
            began = clock.monotonic()
            try:
                count = await step()
            except Exception as error:
                if isinstance(error, InfrastructureError) and not isinstance(error, Contention):
                    raise
                _logger.warning("retention_failed", kind=kind, where=place_of(error))
                failures.append(error)
                count = None
            if count is None:
                del steps[kind]
                continue
            counts[kind] += count
            _deleted.labels(kind).inc(count)
            # Also after a page of which all was kept: it was found, locked and judged like any other.
            await clock.sleep(REST * (clock.monotonic() - began))
    if failures:
        raise failures[0]
    return {**counts, "finished": not steps}


def _steps(database: Database, keep: Kept) -> dict[str, _Step]:
    return {
        "bodies": _Pages(database, keep.bodies, retention.find_old_bodies, retention.delete_bodies).step,
        "outputs": _Pages(database, keep.outputs, retention.find_old_outputs, retention.delete_outputs).step,
        "inbox": _Pages(database, keep.inbox, retention.find_old_items, retention.delete_items).step,
        "deliveries": _Pages(
            database, keep.deliveries, retention.find_old_deliveries, retention.delete_deliveries
        ).step,
        "runs": _Pages(database, keep.runs, retention.find_old_runs, retention.delete_runs).step,
        "executions": _Pages(
            database, keep.executions, retention.find_old_executions, retention.delete_executions
        ).step,
        "events": _Events(database, keep.events).step,
        "statistics": _Statistics(database, keep.statistics).step,
    }


class _Pages:
    """A kind whose rows are found by id, page behind page, so that what stays is looked at once."""

    def __init__(self, database: Database, keep: timedelta, find: _Find, delete: _Delete) -> None:
        self._database = database
        self._keep = keep
        self._find = find
        self._delete = delete
        self._after = UUID(int=0)

    async def step(self) -> int | None:
        async with self._database.connection() as conn:
            ids = await self._find(conn, self._keep, self._after, BATCH)
        if not ids:
            return None
        self._after = ids[-1]
        return await _transact(self._database, lambda conn: self._delete(conn, self._keep, ids)) or 0


class _Events:
    """Events, workspace behind workspace, each from its first number on."""

    def __init__(self, database: Database, keep: timedelta) -> None:
        self._database = database
        self._keep = keep
        self._passed = UUID(int=0)
        self._after = 0

    async def step(self) -> int | None:
        async with self._database.connection() as conn:
            workspace_id = await retention.find_workspace_with_events(conn, self._passed)
            if workspace_id is None:
                return None
            seqs = await retention.find_old_events(conn, workspace_id, self._keep, self._after, BATCH)
        count = await self._delete(workspace_id, seqs)
        if len(seqs) == BATCH and count is not None:
            self._after = seqs[-1]
        else:  # also where somebody was in the way: what comes behind a page stays as long as the page
            self._passed, self._after = workspace_id, 0
        return count or 0

    async def _delete(self, workspace_id: WorkspaceId, seqs: Sequence[int]) -> int | None:
        if not seqs:
            return 0
        return await _transact(self._database, lambda conn: retention.delete_events(conn, workspace_id, seqs))


class _Statistics:
    """Hours of statistics, oldest first."""

    def __init__(self, database: Database, keep: timedelta) -> None:
        self._database = database
        self._keep = keep
        self._since: datetime | None = datetime.min.replace(tzinfo=UTC)

    async def step(self) -> int | None:
        if (since := self._since) is None:
            return None
        hours: list[datetime] = []

        async def delete(conn: Conn) -> int:
            hours[:] = await retention.delete_statistics(conn, self._keep, since, BATCH)
            return len(hours)

        count = await _transact(self._database, delete)
        self._since = max(hours) if count == BATCH else None
        return count or 0


async def _transact(database: Database, delete: Callable[[Conn], Awaitable[int]]) -> int | None:
    async def use_case(conn: Conn) -> int:
        count = await delete(conn)
        await points.hit("scheduler.retention.before_commit")
        return count

    try:
        count = await database.transact(use_case)
    except Contention:
        return None  # somebody works on what is that old: it comes again the next day
    await points.hit("scheduler.retention.after_batch")
    return count
