"""The schedule job: due occurrences admitted in batches, precisely when they are due (S7.8 to S7.12).

Its work is only SQL, so that it needs neither lease nor heartbeat: a batch is one transaction, and a process that is
killed in it leaves nothing behind. A batch that fails is halved until the bad plan stands alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log, metrics, points
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token
from autopilot.kit.loop import StepResult
from autopilot.scheduler.jobs import plans
from autopilot.scheduler.jobs.plans import Settled
from autopilot.storage import schedules
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention
from autopilot.storage.schedules import DueRetry, DueTrigger, FailedPlan, Signature

_logger = log.get_logger()
_plans = metrics.counter("schedule_plans_total", "Schedule plans settled, by outcome", ["outcome"])
_plans.labels("failed")  # the first failure must be seen as a rise
_late = metrics.histogram("schedule_lateness_seconds", "How long after its time an occurrence was admitted")
_sizes = metrics.histogram("schedule_batch_plans", "Plans settled in a transaction", buckets=metrics.COUNTS)
_stopped = metrics.counter("schedule_triggers_stopped_total", "Triggers stopped by an unreadable schedule")
_splits = metrics.counter("schedule_splits_total", "Batches that failed and were halved")

LOOK_AGAIN_S: Final = 0.05
POSTPONE: Final = timedelta(minutes=15)


class _Item(Protocol):
    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=_Item)


class ScheduleJob:
    """One process's part in the schedule; `wake_dispatch` is called after each commit that admitted a run."""

    def __init__(
        self,
        database: Database,
        *,
        wake_dispatch: Callable[[], None],
        batch: int = 500,
        runner_id: UUID | None = None,
    ) -> None:
        self._database = database
        self._wake_dispatch = wake_dispatch
        self._batch = batch
        self._runner_id = runner_id or random_token()
        self._stuck = False

    async def step(self) -> StepResult:
        """Settle what is due, retries first, or say for how many seconds nothing will be."""
        async with self._database.connection() as conn:
            peek = await schedules.peek(conn)
        waits = [wait for wait in (peek.plan_in_s, peek.retry_in_s) if wait is not None]
        if not waits:
            return None
        if min(waits) > 0:
            return min(waits)
        settled = 0
        self._stuck = False
        if peek.retry_in_s is not None and peek.retry_in_s <= 0:
            settled += await self._settle_retries()
        if peek.plan_in_s is not None and peek.plan_in_s <= 0:
            settled += await self._settle_plans()
        if settled:
            return True
        # What is due and was passed over is held by an edit or by another scheduler, for milliseconds.
        return None if self._stuck else LOOK_AGAIN_S

    async def _settle_plans(self) -> int:
        picked: list[DueTrigger] = []
        by = plans.signature(self._runner_id)
        try:
            settled = await self._database.transact(
                lambda conn: plans.settle_next(conn, by, self._batch, picked), tries=1
            )
        except Exception as error:
            unavailable = isinstance(error, InfrastructureError) and not isinstance(error, Contention)
            if unavailable or not picked:
                raise
            self._note_split(picked, error)
            return await self._settle_apart(
                picked, lambda part, conn: plans.settle_again(conn, by, part), self._fail_due
            )
        self._after_commit(settled)
        return settled.triggers

    async def _settle_retries(self) -> int:
        async with self._database.connection() as conn:
            retries = await schedules.list_retries(conn, self._batch)
        by = plans.signature(self._runner_id)
        return await self._settle_apart(
            retries, lambda part, conn: plans.settle_retries(conn, by, part), self._fail_retry
        )

    async def _settle_apart(
        self,
        items: Sequence[T],
        use_case: Callable[[Sequence[T], Conn], Awaitable[Settled]],
        give_up: Callable[[T, Exception], Awaitable[bool]],
    ) -> int:
        """Settle items together, or in halves where that fails, down to the bad one, which is given up for now."""
        parts = deque([list(items)] if items else [])
        count = 0
        while parts:
            part = parts.popleft()
            try:
                settled = await self._database.transact(partial(use_case, part), tries=2)
            except Contention as error:
                if len(part) == 1:
                    _logger.warning("plan_contended", id=str(part[0].id), reason=str(error))
                    self._stuck = True
                    continue
                failure: Exception = error
            except InfrastructureError:
                raise
            except Exception as error:  # noqa: BLE001 - per-item isolation: halved until the bad plan stands alone
                if len(part) == 1:
                    count += await give_up(part[0], error)
                    continue
                failure = error
            else:
                self._after_commit(settled)
                count += len(settled.plans) + len(settled.stopped)
                continue
            self._note_split(part, failure)
            middle = len(part) // 2
            parts.extendleft((part[middle:], part[:middle]))
        return count

    def _note_split(self, part: Sequence[object], error: Exception) -> None:
        _splits.inc()
        _logger.warning("batch_split", plans=len(part), where=place_of(error))

    async def _fail_due(self, trigger: DueTrigger, error: Exception) -> bool:
        return await self._fail(
            trigger, error, lambda conn, by, message: plans.fail_due(conn, by, trigger, message)
        )

    async def _fail_retry(self, retry: DueRetry, error: Exception) -> bool:
        if await self._fail(
            retry, error, lambda conn, by, message: plans.fail_retry(conn, by, retry, message)
        ):
            return True
        await self._database.transact(lambda conn: schedules.postpone_retry(conn, retry.id, POSTPONE))
        return True

    async def _fail(
        self,
        item: _Item,
        error: Exception,
        use_case: Callable[[Conn, Signature, str], Awaitable[list[FailedPlan]]],
    ) -> bool:
        """Write the failure down in a transaction of its own; False where even that fails, and it is owed."""
        by = plans.signature(self._runner_id)
        message = describe_error(error)
        try:
            failed = await self._database.transact(lambda conn: use_case(conn, by, message))
        except InfrastructureError:
            raise
        except Exception as worse:  # noqa: BLE001 - per-item isolation: a failure that cannot be written harms no other
            _logger.warning("plan_failure_not_recorded", id=str(item.id), where=place_of(worse))
            self._stuck = True
            return False
        self._note_failed(failed, error)
        return True

    def _note_failed(self, failed: Sequence[FailedPlan], error: Exception) -> None:
        _plans.labels("failed").inc(len(failed))
        for plan in failed:
            _logger.warning(
                "plan_failed",
                trigger_id=str(plan.trigger_id),
                planned_at=plan.planned_at.isoformat(),
                attempts=plan.attempts,
                final=plan.next_retry_at is None,
                where=place_of(error),
            )

    def _after_commit(self, settled: Settled) -> None:
        points.hit_sync("scheduler.schedule.after_commit")
        if settled.plans:
            _sizes.observe(len(settled.plans))
        for outcome, count in Counter(plan.outcome for plan in settled.plans).items():
            _plans.labels(outcome).inc(count)
        for late_s in settled.late_s:
            _late.observe(max(0.0, late_s))
        for trigger_id in settled.stopped:
            _stopped.inc()
            _logger.error("schedule_unreadable", trigger_id=str(trigger_id))
        if settled.admitted:
            self._wake_dispatch()
