"""What a job is: when its plans are due, how long they may take, how often they are tried, and what they do (S7.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from autopilot.domain.errors import InvalidValue
from autopilot.storage.database import Conn
from autopilot.storage.executions import FailedExecution, Scope

EVERYWHERE: Final = Scope("global", "all")


class CatchUpMode(StrEnum):
    """Which of several due plans are run (S7.6)."""

    LATEST_ONLY = "latest_only"
    EVERY_PLAN = "every_plan"


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler is told of the plan it runs; `attempt` counts from 1."""

    job_name: str
    scope: Scope
    plan_time: datetime
    attempt: int


Handler: TypeAlias = Callable[[JobRun], Awaitable[dict[str, Any] | None]]
"""Does a plan's work and returns its result, a JSON object. It may be cancelled at any await, and may be run again."""

Planner: TypeAlias = Callable[[Scope, datetime, datetime], Awaitable[Sequence[datetime]]]
"""The plan times of a scope in (since, until]."""

OnExhausted: TypeAlias = Callable[[Conn, FailedExecution], Awaitable[None]]
"""Called in the transaction that makes a plan finally FAILED, whoever finds that out (HAZARDS 23)."""


async def one_scope() -> Sequence[Scope]:
    """The scopes of a job that is one for all."""
    return (EVERYWHERE,)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `cadence` plans at its multiples since 1970; `plans_for_scope` plans in its own way.

    `schedule_delay` lets a plan become due later than its time. `stale_reentry` says that a plan whose runner was lost
    may be begun again by another. `retry_backoff` are the waits after the first failure, the second and so on.
    """

    name: str
    handler: Handler
    cadence: timedelta | None = None
    plans_for_scope: Planner | None = None
    scopes: Callable[[], Awaitable[Sequence[Scope]]] = one_scope
    schedule_delay: timedelta = timedelta(0)
    catch_up: CatchUpMode = CatchUpMode.LATEST_ONLY
    catch_up_window: timedelta = timedelta(hours=24)
    max_plans_per_tick: int | None = None
    run_timeout: timedelta = timedelta(minutes=2)
    stale_timeout: timedelta = timedelta(minutes=5)
    heartbeat_interval: timedelta = timedelta(seconds=30)
    stale_reentry: bool = False
    max_attempts: int = 1
    retry_backoff: tuple[timedelta, ...] = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))
    on_exhausted: OnExhausted | None = None

    def retry_after(self, attempt: int) -> timedelta:
        """How long to wait after that attempt failed."""
        return self.retry_backoff[min(attempt, len(self.retry_backoff)) - 1]


class Registry:
    """The jobs of one process, by name."""

    def __init__(self) -> None:
        self._specs: dict[str, JobSpec] = {}

    def register(self, spec: JobSpec) -> JobSpec:
        """Take a job in; InvalidValue names the field at fault."""
        for field, fault in _faults(spec):
            raise InvalidValue(field, f"job {spec.name!r}: {fault}")
        if spec.name in self._specs:
            raise InvalidValue("name", f"there is a job {spec.name!r} already")
        self._specs[spec.name] = spec
        return spec

    def __iter__(self) -> Iterator[JobSpec]:
        return iter(self._specs.values())


def _faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    zero = timedelta(0)
    if not spec.name.strip():
        yield "name", "a job needs a name"
    if spec.cadence is None and spec.plans_for_scope is None:
        yield "cadence", "a job needs a cadence or a planner"
    if spec.cadence is not None and spec.cadence <= zero:
        yield "cadence", "the cadence must be longer than nothing"
    if spec.schedule_delay < zero:
        yield "schedule_delay", "a plan cannot become due before its time"
    if spec.catch_up_window <= zero:
        yield "catch_up_window", "the window must be longer than nothing"
    if spec.catch_up is CatchUpMode.EVERY_PLAN and spec.max_plans_per_tick is None:
        yield "max_plans_per_tick", "every_plan needs a limit of plans a tick"
    if spec.max_plans_per_tick is not None and spec.max_plans_per_tick < 1:
        yield "max_plans_per_tick", "the limit of plans a tick must be at least 1"
    if spec.run_timeout <= zero:
        yield "run_timeout", "the run timeout must be longer than nothing"
    if spec.run_timeout >= spec.stale_timeout:
        yield "run_timeout", "the run timeout must be shorter than the stale timeout"
    if not zero < spec.heartbeat_interval <= spec.stale_timeout / 3:
        yield "heartbeat_interval", "a heartbeat must come at least three times within the stale timeout"
    if spec.max_attempts < 1:
        yield "max_attempts", "a job is attempted at least once"
    if not spec.retry_backoff or min(spec.retry_backoff) < zero:
        yield "retry_backoff", "there must be a wait after a failure, and none may be negative"
