"""One plan from claim to finish: under a lease, kept alive by heartbeats, ended by its token (S7.3, S7.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, get_args
from uuid import UUID

import msgspec

from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.kit import log, metrics, points
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.ledger import Ledger
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention
from autopilot.storage.executions import (
    Claim,
    ErrorCode,
    FailedExecution,
    Failure,
    Lease,
    PlanKey,
    Scope,
    Stale,
    Success,
)

_logger = log.get_logger()
_claimed = metrics.counter("scheduler_plans_claimed_total", "Plans of jobs claimed", ["job_name"])
_stolen = metrics.counter(
    "scheduler_plans_stolen_total", "Plans taken from a runner that was lost", ["job_name"]
)
_failed = metrics.counter(
    "scheduler_plans_failed_total", "Plans that failed, by error", ["job_name", "error"]
)
_seconds = metrics.histogram("scheduler_run_seconds", "How long a plan ran", ["job_name"])

CANCEL_GRACE_S: Final = 5.0
HAND_BACK_PATIENCE: Final = timedelta(seconds=5)
SWEEP_LIMIT: Final = 500


class _Done(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler ended: with a result as JSON text, or with an error."""

    result: str | None = None
    code: ErrorCode | None = None
    message: str = ""


_STOPPED: Final = _Done(code="cancelled", message="the scheduler was stopped")


class Claimant:
    """Runs plans under an identity that is random per process."""

    def __init__(self, database: Database, *, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._ledgers: dict[str, Ledger] = {}
        self.runner_id: UUID = random_token()

    def expect(self, job_name: str) -> None:
        """Let the counters of a job begin at 0: the first loss and the first failure must be seen as a rise."""
        _stolen.labels(job_name)
        for error in get_args(ErrorCode):
            _failed.labels(job_name, error)

    async def attempt(self, spec: JobSpec, scope: Scope, plan_time: datetime) -> bool:
        """Run a plan if it can be had; whether it could. Cancelling this ends the handler and hands the plan back."""
        lease = await self._claim(spec, PlanKey(job_name=spec.name, scope=scope, plan_time=plan_time))
        if lease is None:
            return False
        _claimed.labels(spec.name).inc()
        if lease.was == "RUNNING":
            _stolen.labels(spec.name).inc()
        await points.hit("scheduler.after_claim")
        began = self._clock.monotonic()
        try:
            done = await self._run(spec, lease)
        except asyncio.CancelledError:
            await self._hand_back(spec, lease)
            raise
        _seconds.labels(spec.name).observe(self._clock.monotonic() - began)
        await points.hit("scheduler.before_finish")
        await self._finish(spec, lease, done)
        return True

    async def sweep(self, spec: JobSpec) -> None:
        """Fail a job's stale plans, a page at a time, or each alone where the end of one cannot be written."""
        after: Stale | None = None
        while True:
            async with self._database.connection() as conn:
                stale = await executions.list_stale(conn, spec.name, after, limit=SWEEP_LIMIT)
            if stale and not await self._fail_stale(spec, stale):
                for one in stale:
                    await self._fail_stale(spec, [one])
            if len(stale) < SWEEP_LIMIT:
                return
            after = stale[-1]

    async def _fail_stale(self, spec: JobSpec, stale: Sequence[Stale]) -> bool:
        try:
            failed = await self._ledger(spec).fail_stale(stale)
        except InfrastructureError as error:
            if not isinstance(error, Contention):
                raise
            place = place_of(error)
        except Exception as error:  # noqa: BLE001 - per-item isolation: an end that cannot be written holds up no other
            place = place_of(error)
        else:
            for one in failed:
                _note_failed(one)
            return True
        _logger.warning("sweep_failed", job=spec.name, executions=len(stale), where=place)
        return False

    def _ledger(self, spec: JobSpec) -> Ledger:
        if spec.name not in self._ledgers:
            self._ledgers[spec.name] = Ledger(self._database, spec)
        return self._ledgers[spec.name]

    async def _claim(self, spec: JobSpec, plan: PlanKey) -> Lease | None:
        claim = Claim(
            id=uuid7(),
            plan=plan,
            token=LeaseToken(random_token()),
            runner_id=self.runner_id,
            max_attempts=spec.max_attempts,
            reentry=spec.stale_reentry,
            stale_after=spec.stale_timeout,
        )
        claiming = asyncio.ensure_future(self._ledger(spec).claim(claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # What is on its way would be claimed and left to go stale.
            lease = await claiming
            if lease is not None:
                await self._hand_back(spec, lease)
            raise

    async def _run(self, spec: JobSpec, lease: Lease) -> _Done:
        plan = lease.plan
        run = JobRun(
            job_name=plan.job_name, scope=plan.scope, plan_time=plan.plan_time, attempt=lease.attempt
        )
        handler = asyncio.ensure_future(spec.handler(run))
        beating = asyncio.ensure_future(self._beat(spec, lease))
        deadline = asyncio.ensure_future(self._clock.sleep(spec.run_timeout.total_seconds()))
        try:
            await asyncio.wait({handler, beating, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if handler.done():
                return _done(handler)
            if beating.done():
                return _Done(code="lease_lost", message="the lease was lost while the plan ran")
            return _Done(code="run_timeout", message=f"did not finish within {spec.run_timeout}")
        finally:
            for task in (handler, beating, deadline):
                task.cancel()
            ended, late = await asyncio.wait({handler, beating, deadline}, timeout=CANCEL_GRACE_S)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # looked at, or the event loop complains that nobody did
            if late:
                _logger.error("handler_ignores_cancellation", job=spec.name)

    async def _beat(self, spec: JobSpec, lease: Lease) -> None:
        """Extend the lease again and again; returns when it is lost, or before it may run out without anybody to tell."""
        stale_s, interval_s = spec.stale_timeout.total_seconds(), spec.heartbeat_interval.total_seconds()
        held_until = self._clock.monotonic() + stale_s
        while True:
            await self._clock.sleep(interval_s)
            asked = self._clock.monotonic()
            try:
                held = await self._ledger(spec).heartbeat(lease)
            except InfrastructureError as error:
                _logger.warning("heartbeat_failed", job=spec.name, reason=str(error))
                if self._clock.monotonic() + interval_s < held_until:
                    continue
                return
            if not held:
                return
            held_until = asked + stale_s

    async def _hand_back(self, spec: JobSpec, lease: Lease) -> None:
        """Let another runner begin the plan; with the database away the stop does not wait for it, and the sweep does that."""
        await self._finish(spec, lease, _STOPPED, patience=HAND_BACK_PATIENCE)

    async def _finish(
        self, spec: JobSpec, lease: Lease, done: _Done, *, patience: timedelta | None = None
    ) -> None:
        """Write the end by the lease's token, again while the database is away and the lease lasts."""
        backoff = Backoff(first_s=0.2, last_s=5.0)
        give_up_at = self._clock.monotonic() + (patience or spec.stale_timeout).total_seconds()
        while True:
            try:
                await self._write_end(spec, lease, done)
                return
            except InfrastructureError as error:
                backoff.note_failure()
                if self._clock.monotonic() >= give_up_at:
                    _logger.warning("finish_given_up", job=spec.name, reason=str(error))
                    return
                await self._clock.sleep(backoff.next_delay_s())

    async def _write_end(self, spec: JobSpec, lease: Lease, done: _Done) -> None:
        if done.code is None:
            try:
                held = await self._ledger(spec).succeed(Success(lease=lease, result=done.result))
            except InfrastructureError:
                raise
            except Exception as error:  # noqa: BLE001 - per-item isolation: a result that the database cannot hold
                message = f"the result cannot be stored: {describe_error(error)}"
                held = await self._write_failure(spec, lease, "handler_error", message)
        else:
            held = await self._write_failure(spec, lease, done.code, done.message)
        if not held:
            _logger.warning("lease_lost", job=spec.name, execution_id=str(lease.id))

    async def _write_failure(self, spec: JobSpec, lease: Lease, code: ErrorCode, message: str) -> bool:
        retry_after = _retry_after(spec, lease, code)
        failed = await self._ledger(spec).fail(
            Failure(lease=lease, code=code, message=message, retry_after=retry_after)
        )
        if failed is not None:
            _note_failed(failed)
        return failed is not None


def _done(handler: asyncio.Future[dict[str, Any] | None]) -> _Done:
    if handler.cancelled():
        return _Done(code="cancelled", message="the handler cancelled itself")
    error = handler.exception()
    if error is not None:
        _logger.warning("handler_failed", where=place_of(error))
        return _Done(code="handler_error", message=describe_error(error))
    result = handler.result()
    try:
        return _Done(result=None if result is None else msgspec.json.encode(result).decode())
    except (TypeError, ValueError, RecursionError) as unwritable:
        return _Done(code="handler_error", message=f"the result is no JSON: {describe_error(unwritable)}")


def _retry_after(spec: JobSpec, lease: Lease, code: ErrorCode) -> timedelta | None:
    # Without re-entry a run that was cut off may have done half its work: only people may begin it again (S7.5).
    if code != "handler_error" and not spec.stale_reentry:
        return None
    return timedelta(0) if code == "cancelled" else spec.retry_after(lease.attempt)


def _note_failed(failed: FailedExecution) -> None:
    _failed.labels(failed.plan.job_name, failed.error_code).inc()
    _logger.warning(
        "plan_failed",
        job=failed.plan.job_name,
        scope=failed.plan.scope.id,
        plan_time=failed.plan.plan_time.isoformat(),
        error=failed.error_code,
        attempts=failed.attempts,
        final=failed.next_retry_at is None,
    )
