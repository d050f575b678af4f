"""The tick of a job: sweep, then for each scope its due retries and its new plans, every scope apart (S7.5 to S7.7)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log, metrics
from autopilot.kit.faults import place_of
from autopilot.kit.loop import StepResult
from autopilot.scheduler import cadence
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.spec import CatchUpMode, JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Database
from autopilot.storage.executions import Agenda, Scope, Span

_logger = log.get_logger()
_scope_failures = metrics.counter(
    "scheduler_scope_failures_total", "Scopes that could not be worked on", ["job_name"]
)

RETRY_LIMIT: Final = 1000
SLICE: Final = 50
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
        self._scopes: Collection[Scope] = ()
        claimant.expect(spec.name)

    @property
    def poll_s(self) -> float:
        """How often a tick is worth its while."""
        if self.spec.cadence is None:
            return _FIRST_POLL_S
        return min(max(self.spec.cadence.total_seconds() / 5, _FIRST_POLL_S), _LAST_POLL_S)

    async def tick(self) -> StepResult:
        """Sweep what is stale, then begin whatever is due: retries first, even where the scopes cannot be told.

        The answer says in how many seconds something will be due next.
        """
        async with self._database.connection() as conn:
            agenda = await executions.read_agenda(conn, self.spec.name)
        await self._claimant.sweep(self.spec)
        async with self._database.connection() as conn:
            due = await executions.list_retries(conn, self.spec.name, busy=self._busy, limit=RETRY_LIMIT)
        retries: defaultdict[Scope, list[datetime]] = defaultdict(list)
        for plan in due:
            retries[plan.scope].append(plan.plan_time)
        for scope, plan_times in retries.items():
            self._begin(scope, partial(self._retry, scope, plan_times))
        async with asyncio.timeout(SCOPES_TIMEOUT_S):
            self._scopes = dict.fromkeys(await self.spec.scopes())
        free = [scope for scope in self._scopes if scope not in self._busy]
        for first in range(0, len(free), SLICE):
            await self._begin_new(free[first : first + SLICE])
        return self._wait_s(agenda)

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

    async def _begin_new(self, scopes: Sequence[Scope]) -> None:
        """Begin the new plans of scopes; they are few at a time, so that the process's other work goes on in between."""
        spans = await self._read_spans(scopes)
        if self.spec.plans_for_scope is not None:
            for scope in scopes:
                self._begin(scope, partial(self._run_planned, scope, spans[scope]))
            return
        for scope, plan_times in (await self._on_cadence(spans)).items():
            if plan_times:
                self._begin(scope, partial(self._run, scope, plan_times))

    def _begin(self, scope: Scope, work: Callable[[], Awaitable[None]]) -> None:
        task = self._busy[scope] = asyncio.create_task(self._guarded(scope, work))
        task.add_done_callback(partial(self._note_idle, scope))

    def _note_idle(self, scope: Scope, _task: asyncio.Task[None]) -> None:
        del self._busy[scope]

    async def _guarded(self, scope: Scope, work: Callable[[], Awaitable[None]]) -> None:
        name = self.spec.name
        try:
            await work()
        except InfrastructureError as error:
            _logger.warning("scope_waits_for_infrastructure", job=name, scope=scope.id, reason=str(error))
        except Exception as error:  # noqa: BLE001 - per-item isolation: a scope harms no other (S7.7)
            _scope_failures.labels(name).inc()
            _logger.warning("scope_failed", job=name, scope=scope.id, where=place_of(error))

    async def _retry(self, scope: Scope, plan_times: Sequence[datetime]) -> None:
        """Run the due retries of a scope, then its new plans. A scope that is no more is still owed its retries."""
        await self._run(scope, plan_times)
        if scope not in self._scopes:
            return
        spans = await self._read_spans([scope])
        if self.spec.plans_for_scope is not None:
            await self._run_planned(scope, spans[scope])
        else:
            await self._run(scope, (await self._on_cadence(spans))[scope])

    async def _run(self, scope: Scope, plan_times: Sequence[datetime]) -> None:
        for plan_time in plan_times:
            await self._claimant.attempt(self.spec, scope, plan_time)

    async def _run_planned(self, scope: Scope, span: Span) -> None:
        planner = self.spec.plans_for_scope
        assert planner is not None
        since, until = self._window(span)
        async with asyncio.timeout(self.spec.run_timeout.total_seconds()):
            given = await planner(scope, since, until)
        due = [plan_time for plan_time in given if since < plan_time <= until]
        if self.spec.catch_up is CatchUpMode.LATEST_ONLY:
            await self._run(scope, cadence.latest_only(due, span))
        else:
            known = await self._known([scope], since)
            await self._run(scope, self._every_plan(due, span, known[scope]))

    async def _on_cadence(self, spans: Mapping[Scope, Span]) -> dict[Scope, list[datetime]]:
        """The new plans of each scope; all were read at one time."""
        every = self.spec.cadence
        assert every is not None
        since, until = self._window(next(iter(spans.values())))
        if self.spec.catch_up is CatchUpMode.LATEST_ONLY:
            newest = cadence.newest_on(every, until)
            due = [newest] if newest > since else []
            return {scope: cadence.latest_only(due, span) for scope, span in spans.items()}
        due = cadence.all_on(every, since, until)
        known = await self._known(list(spans), since)
        return {scope: self._every_plan(due, span, known[scope]) for scope, span in spans.items()}

    def _wait_s(self, agenda: Agenda) -> float | None:
        ahead = [agenda.next_at] if agenda.next_at is not None else []
        if self.spec.cadence is not None:
            newest = cadence.newest_on(self.spec.cadence, agenda.now - self.spec.schedule_delay)
            ahead.append(newest + self.spec.cadence + self.spec.schedule_delay)
        return (min(ahead) - agenda.now).total_seconds() if ahead else None

    def _window(self, span: Span) -> tuple[datetime, datetime]:
        until = span.now - self.spec.schedule_delay
        return until - self.spec.catch_up_window, until

    def _every_plan(self, due: Sequence[datetime], span: Span, known: set[datetime]) -> list[datetime]:
        assert self.spec.max_plans_per_tick is not None
        return cadence.every_plan(due, span, known, limit=self.spec.max_plans_per_tick)

    async def _read_spans(self, scopes: Sequence[Scope]) -> dict[Scope, Span]:
        async with self._database.connection() as conn:
            return await executions.read_spans(conn, self.spec.name, scopes)

    async def _known(self, scopes: Sequence[Scope], since: datetime) -> dict[Scope, set[datetime]]:
        async with self._database.connection() as conn:
            return await executions.list_plan_times(conn, self.spec.name, scopes, since=since)
