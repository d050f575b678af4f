"""Run events on their way out: numbered in commit order, then published in order per run until confirmed (S12.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from uuid import UUID

import msgspec

from autopilot.bus.errors import BusRefused
from autopilot.bus.subjects import event_subject
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.events import RunEvent
from autopilot.domain.ids import LeaseToken, RunId
from autopilot.kit import log, metrics, points
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.ids import random_token
from autopilot.storage import events
from autopilot.storage.database import Database
from autopilot.storage.events import RelayLease

_logger = log.get_logger()
_sequenced = metrics.counter("run_events_sequenced_total", "Run events given their number")
_relayed = metrics.counter(
    "run_events_relayed_total", "Run events confirmed by the stream, or refused for ever", ["outcome"]
)

LEASE_S = 30.0
WINDOW = 64
WORKSPACES = 16


class Publisher(Protocol):
    """Where events go: `autopilot.bus.events.EventPublisher`."""

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> object:
        """Store one event; raises BusUnavailable (later, same id) or BusRefused (never)."""
        ...


class Sequencer:
    """Moves run events from the outbox to their workspace's dense sequence; `tell` when there are new ones."""

    def __init__(self, database: Database, *, batch: int, tell: Callable[[], None]) -> None:
        self._database = database
        self._batch = batch
        self._tell = tell

    async def step(self) -> bool:
        """Number one batch; whether there may be more."""
        async with self._database.connection() as conn:
            if not await events.open_heads(conn, self._batch):
                return False
        count = await self._database.transact(lambda conn: events.sequence(conn, self._batch))
        if count:
            _sequenced.inc(count)
            self._tell()
        return count > 0


class Relay:
    """Publishes the events of workspaces that it holds by lease, each run's in order, each again until confirmed."""

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

    async def step(self) -> bool:
        """Relay a batch for each of some workspaces; whether there may be more. Nothing happens without NATS."""
        if not self._connected():
            return False
        token = LeaseToken(random_token())
        async with self._database.connection() as conn:
            leases = await events.lease_relays(conn, token, lease_s=LEASE_S, limit=WORKSPACES)
        outcomes = await asyncio.gather(
            *(self._relay(lease, token) for lease in leases), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return bool(leases)

    async def _relay(self, lease: RelayLease, token: LeaseToken) -> None:
        try:
            async with self._database.connection() as conn:
                waiting = await events.read_after(conn, lease.workspace_id, lease.relayed_seq, self._batch)
            held_until = self._clock.monotonic() + LEASE_S / 2
            for window in windows(waiting):
                if self._clock.monotonic() > held_until:
                    return
                await self._publish(window)
                await points.hit("dispatcher.after_publish")
                async with self._database.connection() as conn:
                    if not await events.advance_relay(
                        conn, lease.workspace_id, token, window[-1].seq, lease_s=LEASE_S
                    ):
                        _logger.warning("relay_lease_lost", workspace_id=str(lease.workspace_id))
                        return
                held_until = self._clock.monotonic() + LEASE_S / 2
        finally:
            with suppress(InfrastructureError):  # then the lease runs out by itself
                async with self._database.connection() as conn:
                    await events.release_relay(conn, lease.workspace_id, token)

    async def _publish(self, window: Sequence[RunEvent]) -> None:
        """Publish events of different runs at once and wait for all; the first error is raised when none is on its way."""
        outcomes = await asyncio.gather(
            *(self._publish_one(event) for event in window), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _publish_one(self, event: RunEvent) -> None:
        subject = event_subject(event.workspace_id, event.kind.value)
        try:
            await self._publisher.publish(subject, msgspec.json.encode(event), event.event_id)
        except BusRefused as error:
            # It would be refused for ever and hold up all that come after it; readers of Postgres have it.
            _logger.warning("run_event_refused", event_id=str(event.event_id), reason=str(error))
            _relayed.labels("refused").inc()
        else:
            _relayed.labels("confirmed").inc()


def windows(waiting: Sequence[RunEvent], size: int = WINDOW) -> list[list[RunEvent]]:
    """Cut events into stretches that hold each run once, so that a run's next event follows the ack of the one before."""
    cut: list[list[RunEvent]] = []
    runs: set[RunId] = set()
    for event in waiting:
        if not cut or event.run_id in runs or len(cut[-1]) == size:
            cut.append([])
            runs = set()
        cut[-1].append(event)
        runs.add(event.run_id)
    return cut
