"""One plan from claim to finish: under a lease, kept alive by heartbeats, ended by its token (S7.3, S7.4)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec

from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.kit import log, metrics, points
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import ConstraintViolated
from autopilot.storage.executions import ErrorCode, FailedExecution, Lease, PlanKey, Scope

_logger = log.get_logger()
_claimed = metrics.counter("scheduler_plans_claimed_total", "Plans of jobs claimed", ["job"])
_stolen = metrics.counter("scheduler_plans_stolen_total", "Plans taken from a runner that was lost", ["job"])
_failed = metrics.counter("scheduler_plans_failed_total", "Plans that failed, by error", ["job", "error"])
_seconds = metrics.histogram("scheduler_run_seconds", "How long a plan ran", ["job"])

CANCEL_GRACE_S: Final = 5.0
SWEEP_LIMIT: Final = 100


class _Done(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler ended: with a result, or with an error."""

    result: dict[str, Any] | None = None
    code: ErrorCode | None = None
    message: str = ""


class Claimant:
    """Runs plans under an identity that is random per process."""

    def __init__(self, database: Database, *, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self.runner_id: UUID = random_token()

    async def attempt(self, spec: JobSpec, scope: Scope, plan_time: datetime) -> bool:
        """Run a plan if it can be had; whether it could. Cancelling this ends the handler and hands the plan back."""
        plan = PlanKey(job_name=spec.name, scope=scope, plan_time=plan_time)
        async with self._database.connection() as conn:
            lease = await executions.claim(
                conn,
                plan,
                execution_id=uuid7(),
                token=LeaseToken(random_token()),
                runner_id=self.runner_id,
                max_attempts=spec.max_attempts,
                reentry=spec.stale_reentry,
                stale_after=spec.stale_timeout,
            )
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
            await self._finish(spec, lease, _Done(code="cancelled", message="the scheduler was stopped"))
            raise
        _seconds.labels(spec.name).observe(self._clock.monotonic() - began)
        await points.hit("scheduler.before_finish")
        await self._finish(spec, lease, done)
        return True

    async def sweep(self, spec: JobSpec) -> None:
        """Fail a job's stale plans, each in its own transaction, so that one whose end cannot be written holds up no other."""
        async with self._database.connection() as conn:
            stale = await executions.list_stale(conn, spec.name, limit=SWEEP_LIMIT)
        for execution_id in stale:
            try:
                failed = await self._database.transact(
                    partial(_fail_stale, spec=spec, execution_id=execution_id)
                )
            except InfrastructureError:
                raise
            except Exception as error:  # noqa: BLE001 - per-item isolation
                _logger.warning("sweep_failed", execution_id=str(execution_id), where=place_of(error))
                continue
            if failed is not None:
                _note_failed(failed)

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
        """Extend the lease again and again; returns when it is lost, or when nobody could be told for too long."""
        stale_s = spec.stale_timeout.total_seconds()
        held_until = self._clock.monotonic() + stale_s
        while True:
            await self._clock.sleep(spec.heartbeat_interval.total_seconds())
            asked = self._clock.monotonic()
            try:
                async with self._database.connection() as conn:
                    held = await executions.heartbeat(conn, lease, spec.stale_timeout)
            except InfrastructureError as error:
                _logger.warning("heartbeat_failed", job=spec.name, reason=str(error))
                if self._clock.monotonic() < held_until:
                    continue
                return
            if not held:
                return
            held_until = asked + stale_s

    async def _finish(self, spec: JobSpec, lease: Lease, done: _Done) -> None:
        """Write the end by the lease's token, again while the database is away and the lease lasts."""
        backoff = Backoff(first_s=0.2, last_s=5.0)
        give_up_at = self._clock.monotonic() + spec.stale_timeout.total_seconds()
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
            held = await self._succeed(lease, done.result)
        else:
            code, message = done.code, done.message
            failed = await self._database.transact(lambda conn: _fail(conn, spec, lease, code, message))
            held = failed is not None
            if failed is not None:
                _note_failed(failed)
        if not held:
            _logger.warning("lease_lost", job=spec.name, execution_id=str(lease.id))

    async def _succeed(self, lease: Lease, result: dict[str, Any] | None) -> bool:
        try:
            return await self._database.transact(lambda conn: executions.succeed(conn, lease, result))
        except ConstraintViolated as error:
            if error.constraint != "sys_cron_executions_result_size":
                raise
        note = {"omitted": "the result is larger than 16 KiB"}
        return await self._database.transact(lambda conn: executions.succeed(conn, lease, note))


def _done(handler: asyncio.Future[dict[str, Any] | None]) -> _Done:
    if handler.cancelled():
        return _Done(code="cancelled", message="the handler cancelled itself")
    error = handler.exception()
    if error is None:
        return _Done(result=handler.result())
    _logger.warning("handler_failed", where=place_of(error))
    return _Done(code="handler_error", message=describe_error(error))


async def _fail(
    conn: Conn, spec: JobSpec, lease: Lease, code: ErrorCode, message: str
) -> FailedExecution | None:
    # Without re-entry a run that was cut off may have done half its work: only people may begin it again (S7.5).
    if code != "handler_error" and not spec.stale_reentry:
        retry_after = None
    elif code == "cancelled":
        retry_after = timedelta(0)
    else:
        retry_after = spec.retry_after(lease.attempt)
    failed = await executions.fail(conn, lease, code, message, retry_after=retry_after)
    await _tell_exhausted(conn, spec, failed)
    return failed


async def _fail_stale(conn: Conn, spec: JobSpec, execution_id: UUID) -> FailedExecution | None:
    failed = await executions.fail_stale(conn, execution_id)
    await _tell_exhausted(conn, spec, failed)
    return failed


async def _tell_exhausted(conn: Conn, spec: JobSpec, failed: FailedExecution | None) -> None:
    if failed is not None and failed.next_retry_at is None and spec.on_exhausted is not None:
        await spec.on_exhausted(conn, failed)


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
