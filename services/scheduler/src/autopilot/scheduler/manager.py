"""The tick of a job: sweep, then for each scope its due retries and its new plans, every scope apart (S7.5 to S7.7)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log, metrics
from autopilot.kit.faults import place_of
from autopilot.scheduler import cadence
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.spec import CatchUpMode, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Database
from autopilot.storage.executions import Scope

_logger = log.get_logger()
_scope_failures = metrics.counter(
    "scheduler_scope_failures_total", "Scopes that could not be worked on", ["job"]
)

RETRY_LIMIT: Final = 1000
SCOPES_TIMEOUT_S: Final = 30.0
DRAIN_S: Final = 10.0
_FIRST_POLL_S: Final = 1.0
_LAST_POLL_S: Final = 15.0


class RunningJob:
    """One job in this process. A tick begins work and never waits for it: a scope that is still busy is passed over.

    Leaving the context waits a while for what runs, then cancels it, which hands the plans back.
    """

    def __init__(self, spec: JobSpec, claimant: Claimant, database: Database) -> None:
        self.spec = spec
        self._claimant = claimant
        self._database = database
        self._busy: dict[Scope, asyncio.Task[None]] = {}

    @property
    def poll_s(self) -> float:
        """How often a tick is worth its while."""
        if self.spec.cadence is None:
            return _FIRST_POLL_S
        return min(max(self.spec.cadence.total_seconds() / 5, _FIRST_POLL_S), _LAST_POLL_S)

    async def tick(self) -> None:
        """Sweep what is stale, then begin whatever is due."""
        await self._claimant.sweep(self.spec)
        async with self._database.connection() as conn:
            due = await executions.list_retries(conn, self.spec.name, limit=RETRY_LIMIT)
        retries: defaultdict[Scope, list[datetime]] = defaultdict(list)
        for plan in due:
            retries[plan.scope].append(plan.plan_time)
        async with asyncio.timeout(SCOPES_TIMEOUT_S):
            scopes = await self.spec.scopes()
        # A scope that is no more keeps its retries: a plan once begun is owed its end.
        for scope in {**dict.fromkeys(retries), **dict.fromkeys(scopes)}:
            if scope not in self._busy:
                task = asyncio.create_task(self._work(scope, retries[scope], planned=scope in scopes))
                self._busy[scope] = task
                task.add_done_callback(partial(self._note_idle, scope))

    async def idle(self) -> None:
        """Wait until nothing that was begun runs any more."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self._busy:
            return
        _, late = await asyncio.wait(list(self._busy.values()), timeout=DRAIN_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _note_idle(self, scope: Scope, _task: asyncio.Task[None]) -> None:
        del self._busy[scope]

    async def _work(self, scope: Scope, retries: Sequence[datetime], *, planned: bool) -> None:
        name = self.spec.name
        try:
            for plan_time in retries:
                await self._claimant.attempt(self.spec, scope, plan_time)
            if planned:
                for plan_time in await self._due(scope):
                    await self._claimant.attempt(self.spec, scope, plan_time)
        except InfrastructureError as error:
            _logger.warning("scope_waits_for_infrastructure", job=name, scope=scope.id, reason=str(error))
        except Exception as error:  # noqa: BLE001 - per-item isolation: a scope harms no other (S7.7)
            _scope_failures.labels(name).inc()
            _logger.warning("scope_failed", job=name, scope=scope.id, where=place_of(error))

    async def _due(self, scope: Scope) -> list[datetime]:
        """The new plans to run now."""
        spec = self.spec
        async with self._database.connection() as conn:
            span = await executions.read_span(conn, spec.name, scope)
        until = span.now - spec.schedule_delay
        since = until - spec.catch_up_window
        if spec.catch_up is CatchUpMode.LATEST_ONLY:
            if spec.plans_for_scope is None:
                assert spec.cadence is not None
                newest = cadence.newest_on(spec.cadence, until)
                return cadence.latest_only([newest] if newest > since else [], span)
            return cadence.latest_only(await self._plan(scope, since, until), span)
        assert spec.max_plans_per_tick is not None
        due = await self._plan(scope, since, until)
        async with self._database.connection() as conn:
            known = await executions.list_plan_times(conn, spec.name, scope, since=since)
        return cadence.every_plan(due, span, known, limit=spec.max_plans_per_tick)

    async def _plan(self, scope: Scope, since: datetime, until: datetime) -> Sequence[datetime]:
        if self.spec.plans_for_scope is None:
            assert self.spec.cadence is not None
            return cadence.all_on(self.spec.cadence, since, until)
        async with asyncio.timeout(self.spec.run_timeout.total_seconds()):
            return await self.spec.plans_for_scope(scope, since, until)
