"""Run events on their way out: numbered in commit order, then published in order per run until confirmed (S12.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Protocol
from uuid import UUID

import msgspec

from autopilot.bus.errors import BusRefused
from autopilot.bus.events import PubAck
from autopilot.bus.subjects import event_subject
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.events import RunEvent
from autopilot.domain.ids import LeaseToken, RunId
from autopilot.domain.states import ReasonCode, RunStatus, Source
from autopilot.kit import log, metrics, points
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.ids import random_token
from autopilot.kit.loop import StepResult
from autopilot.storage import events
from autopilot.storage.database import Conn, Database
from autopilot.storage.events import Horizon, RelayLease

_logger = log.get_logger()
_transitions = metrics.counter(
    "run_transitions_total",
    "Runs that started, ended or were skipped, counted once as their event is numbered",
    ["source", "status", "reason"],
)
for _source in Source:  # what wakes somebody must be seen as a rise the first time
    for _reason in (ReasonCode.DISPATCH_EXHAUSTED, ReasonCode.INTERNAL_ERROR):
        _transitions.labels(_source, RunStatus.FAILED, _reason)
_relayed = metrics.counter(
    "run_events_relayed_total",
    "Run events confirmed by the stream, held by it already (duplicate), or refused for ever",
    ["outcome"],
)

LEASE_S = 30.0
LOW_WATER_EVERY_S = 1.0
LOOK_AGAIN_S = 0.02
WINDOW = 256
WORKSPACES = 8
_FIRST = UUID(int=0)


class Publisher(Protocol):
    """Where events go: `autopilot.bus.events.EventPublisher`."""

    async def ensure_stream(self) -> None:
        """Look after the stream; costs nothing where that is done. Raises BusUnavailable."""
        ...

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        """Store one event; raises BusUnavailable (later, same id) or BusRefused (never)."""
        ...


class Sequencer:
    """Moves run events from the outbox to their workspace's dense sequence; `tell` when there are new ones.

    It begins above its low water: while another session holds an old snapshot, the rows that it has moved away
    stay in the way of every look, and looks would get slower and slower.
    """

    def __init__(
        self, database: Database, *, batch: int, tell: Callable[[], None], clock: Clock | None = None
    ) -> None:
        self._database = database
        self._batch = batch
        self._tell = tell
        self._clock = clock or SystemClock()
        self._looked = self._clock.monotonic()
        self.low_water = LowWater()

    async def step(self) -> bool:
        """Number one batch; whether there may be more."""
        try:
            return await self._step(self.low_water.id)
        except InfrastructureError:
            self.low_water = LowWater()  # it may be another database that comes back
            raise

    async def _step(self, above: int) -> bool:
        async with self._database.connection() as conn:
            if not await events.open_heads(conn, self._batch, above=above):
                return False
            if self._clock.monotonic() - self._looked >= LOW_WATER_EVERY_S:
                self._looked = self._clock.monotonic()
                await self.low_water.look(conn)
        told = await self._database.transact(lambda conn: events.sequence(conn, self._batch, above=above))
        for (source, status, reason), count in told.items():
            _transitions.labels(source, status, reason or "none").inc(count)
        if told:
            self._tell()
        return sum(told.values()) >= self._batch


class LowWater:
    """An id up to which the outbox has no row and never will have one again.

    Ids are drawn long before they are committed, so having seen larger ones says nothing: a start that comes late
    would be passed by, and its end numbered before it. An id is settled when every transaction that was at work
    while it was the last one is over; the water rises up to the first row that is left among the settled ones.
    """

    def __init__(self) -> None:
        self.id = 0
        self._settled = 0
        self._before: Horizon | None = None

    async def look(self, conn: Conn) -> None:
        """Rise as far as is safe by now."""
        now = await events.read_horizon(conn)
        before = self._before
        if before is None or before.history != now.history:
            self.id, self._settled, self._before = 0, 0, now
        elif now.oldest > before.youngest:
            self._settled, self._before = before.given, now
        first = await events.find_first_id(conn, above=self.id, up_to=self._settled)
        self.id = self._settled if first is None else first - 1


class Relay:
    """Publishes the events of workspaces that it holds by lease, each run's in order, each again until confirmed.

    At most `WORKSPACES` × `WINDOW` events are on their way, and `WORKSPACES` × `batch` in memory, whatever waits.
    """

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        *,
        connected: Callable[[], bool],
        batch: int,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._connected = connected
        self._batch = batch
        self._clock = clock or SystemClock()
        self._passed = _FIRST

    async def step(self) -> StepResult:
        """Relay a batch for each of some workspaces; True, or a moment to look again, if there may be more.

        Nothing happens without NATS. The workspaces come by turns, so that those that always have events do not hold
        up the others.
        """
        if not self._connected():
            return False
        await self._publisher.ensure_stream()
        token = LeaseToken(random_token())
        async with self._database.connection() as conn:
            leases = await events.lease_relays(
                conn, token, after=self._passed, lease_s=LEASE_S, limit=WORKSPACES
            )
        turned = self._passed != _FIRST
        self._passed = leases[-1].workspace_id if len(leases) == WORKSPACES else _FIRST
        outcomes = await asyncio.gather(
            *(self._relay(lease, token) for lease in leases), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if turned or len(leases) == WORKSPACES or self._batch in outcomes:
            return True
        return LOOK_AGAIN_S if leases else False

    async def _relay(self, lease: RelayLease, token: LeaseToken) -> int:
        """Publish a batch of what comes behind the lease's place: how many there were."""
        released = False
        try:
            async with self._database.connection() as conn:
                waiting = await events.read_after(conn, lease.workspace_id, lease.relayed_seq, self._batch)
            held_until = self._clock.monotonic() + LEASE_S / 2
            for start in range(0, len(waiting), WINDOW):
                if self._clock.monotonic() > held_until:
                    break
                window = waiting[start : start + WINDOW]
                confirmed, error = await self._publish(window)
                await points.hit("dispatcher.after_publish")
                last = start + confirmed == len(waiting)
                if confirmed and not await self._advance(
                    lease, token, window[confirmed - 1].seq, release=last
                ):
                    break
                released = last
                if error is not None:
                    raise error
                held_until = self._clock.monotonic() + LEASE_S / 2
            return len(waiting)
        finally:
            if not released:
                with suppress(InfrastructureError):  # then the lease runs out by itself
                    async with self._database.connection() as conn:
                        await events.release_relay(conn, lease.workspace_id, token)

    async def _advance(self, lease: RelayLease, token: LeaseToken, seq: int, *, release: bool) -> bool:
        async with self._database.connection() as conn:
            held = await events.advance_relay(
                conn, lease.workspace_id, token, seq, lease_s=None if release else LEASE_S
            )
        if not held:
            _logger.warning("relay_lease_lost", workspace_id=str(lease.workspace_id))
        return held

    async def _publish(self, window: Sequence[RunEvent]) -> tuple[int, BaseException | None]:
        """Publish the runs of a window at once and wait for all: how many events from its beginning are confirmed.

        With it comes the first error, when nothing is on its way any more.
        """
        done: set[int] = set()

        async def publish_in_order(of_one_run: Sequence[RunEvent]) -> None:
            for event in of_one_run:
                await self._publish_one(event)
                done.add(event.seq)

        outcomes = await asyncio.gather(*map(publish_in_order, by_run(window)), return_exceptions=True)
        confirmed = sum(1 for _ in takewhile(lambda event: event.seq in done, window))
        return confirmed, next((each for each in outcomes if isinstance(each, BaseException)), None)

    async def _publish_one(self, event: RunEvent) -> None:
        subject = event_subject(event.workspace_id, event.kind.value)
        try:
            ack = await self._publisher.publish(subject, msgspec.json.encode(event), event.event_id)
        except BusRefused as error:
            # It would be refused for ever and hold up all that come after it; readers of Postgres have it.
            _logger.warning("run_event_refused", event_id=str(event.event_id), reason=str(error))
            _relayed.labels("refused").inc()
        else:
            # A duplicate is this event: its id is its own and was never said of another one.
            _relayed.labels("duplicate" if ack.duplicate else "confirmed").inc()


def by_run(window: Sequence[RunEvent]) -> list[list[RunEvent]]:
    """The events of each run, in their order: one is published after the confirmation of the one before."""
    runs: dict[RunId, list[RunEvent]] = {}
    for event in window:
        runs.setdefault(event.run_id, []).append(event)
    return list(runs.values())
