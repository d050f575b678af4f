"""Batching without waiting: while one batch is on the wire the next one gathers (HAZARDS 11)."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from autopilot.domain.errors import AutopilotError, InfrastructureError
from autopilot.kit import log, metrics
from autopilot.kit.backoff import Backoff

T = TypeVar("T")
R = TypeVar("R")

_logger = log.get_logger()
_sizes = metrics.histogram("batch_items", "Items in a batch", ["batch"], buckets=metrics.COUNTS)
_seconds = metrics.histogram("batch_flush_seconds", "How long a batch was on the wire", ["batch"])
_splits = metrics.counter("batch_splits_total", "Batches that failed and were halved", ["batch"])


class QueueFull(InfrastructureError):
    """Too much is waiting to be written already."""


class CoalescerClosed(InfrastructureError):
    """Nothing is taken any more, the process is stopping."""


class _Entry(msgspec.Struct, Generic[T, R], frozen=True, eq=False):
    item: T
    answer: asyncio.Future[R]
    since: float
    size: int


class Coalescer(Generic[T, R]):
    """Turns many concurrent `submit(item)` into few `flush(items)`; each submitter gets its own item's result.

    `flush` gets items sorted by `key` and answers one result, or one exception, for each, in that order. If it
    raises, the batch is halved until the poisonous item stands alone. An infrastructure error says nothing about
    the items: the whole batch is tried again until an item has waited `hold_s`, then that item fails with it. So
    `flush` may see an item again after an unknown outcome, and must be idempotent by the item's own id.

    With `patience_s` the writers take turns: another one begins only when at least as much has gathered as those on
    the wire hold on average, a batch is full, or an item has waited that long. So batches stay large, while one is made
    durable the next one is written, and a writer that is stuck holds up nobody.
    """

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
        *,
        name: str = "batch",
        max_items: int = 500,
        max_bytes: int = 8 * 1024 * 1024,
        size: Callable[[T], int] | None = None,
        max_pending: int = 10_000,
        max_pending_bytes: int = 128 * 1024 * 1024,
        writers: int = 2,
        key: Callable[[T], Any] | None = None,
        hold_s: float = 0.0,
        patience_s: float = 0.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()  # asking for it takes a system call before Python 3.12
        self._flush = flush
        self._name = name
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size = size
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._writers = writers
        self._free_writers = writers
        self._key = key
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._impatient: asyncio.TimerHandle | None = None
        self._on_wire: dict[object, int] = {}
        self._starting = False
        self._gathering: deque[_Entry[T, R]] = deque()
        self._writing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._observe_size = _sizes.labels(name).observe
        self._observe_seconds = _seconds.labels(name).observe

    @property
    def pending(self) -> int:
        """How many items wait for a writer."""
        return len(self._gathering)

    async def submit(self, item: T) -> R:
        """Write `item` with the next batch. QueueFull when too much waits; else what `flush` said of this item."""
        if self._closed:
            raise CoalescerClosed
        if len(self._gathering) >= self._max_pending or self._pending_bytes >= self._max_pending_bytes:
            raise QueueFull
        loop = self._loop
        answer: asyncio.Future[R] = loop.create_future()
        size = self._size(item) if self._size is not None else 0
        self._pending_bytes += size
        self._gathering.append(_Entry(item, answer, loop.time(), size))
        self._start_or_wait()
        return await answer

    async def close(self) -> None:
        """Take no more, write what has gathered, and return when nothing is on the wire."""
        self._closed = True
        self._start_or_wait()
        while self._writing:
            await asyncio.wait(self._writing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _start_writer(self) -> None:
        self._free_writers -= 1
        self._starting = True
        # A writer outlives the request that happened to start it, so it must not carry that request's log ids.
        task = self._loop.create_task(self._write(), context=contextvars.Context())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def _start_or_wait(self) -> None:
        """Start another writer if it is its turn; else look again when the oldest item has waited long enough."""
        if not self._gathering or not self._free_writers or self._starting:
            return
        if self._is_due():
            self._start_writer()
        elif self._impatient is None:
            self._impatient = self._loop.call_at(
                self._gathering[0].since + self._patience_s, self._look_again
            )

    def _look_again(self) -> None:
        self._impatient = None
        self._start_or_wait()

    def _is_due(self) -> bool:
        """Whether what has gathered is to be taken now."""
        gathered, busy = len(self._gathering), len(self._on_wire)
        if not busy or not self._patience_s or gathered >= self._max_items or self._closed:
            return True
        if gathered * busy >= sum(self._on_wire.values()):
            return True
        return self._gathering[0].since + self._patience_s <= self._loop.time()

    async def _write(self) -> None:
        writer = object()
        self._starting = False
        try:
            while self._gathering and self._is_due():
                entries = self._take()
                if entries:
                    self._on_wire[writer] = len(entries)
                    self._start_or_wait()  # for what did not fit into this batch
                    await self._deliver(entries)
                    del self._on_wire[writer]
        finally:
            self._on_wire.pop(writer, None)
            self._free_writers += 1
        self._start_or_wait()

    def _take(self) -> list[_Entry[T, R]]:
        gathering = self._gathering
        entries: list[_Entry[T, R]] = []
        room = self._max_bytes
        while gathering and len(entries) < self._max_items:
            entry = gathering[0]
            room -= entry.size
            if room < 0 and entries:
                break
            gathering.popleft()
            self._pending_bytes -= entry.size
            if not entry.answer.done():  # else its submitter has gone away
                entries.append(entry)
        key = self._key
        if key is not None:
            entries.sort(key=lambda entry: key(entry.item))
        return entries

    async def _deliver(self, entries: list[_Entry[T, R]]) -> None:
        loop = self._loop
        backoff = Backoff(first_s=0.1, last_s=1.0)
        while entries:
            began = loop.time()
            try:
                results = await self._flush([entry.item for entry in entries])
            except asyncio.CancelledError:
                self._fail(entries, CoalescerClosed())
                raise
            except Exception as error:  # noqa: BLE001 - the seam of the batch: no item may harm its neighbours
                if not (isinstance(error, AutopilotError) and error.infrastructure):
                    await self._halve(entries, error)
                    return
                backoff.note_failure()
                entries = self._keep_waiting(entries, error, loop.time())
                if entries:
                    await asyncio.sleep(backoff.next_delay_s())
            else:
                self._observe_seconds(loop.time() - began)
                self._observe_size(len(entries))
                self._settle(entries, results)
                return

    async def _halve(self, entries: list[_Entry[T, R]], error: Exception) -> None:
        if len(entries) == 1:
            _logger.warning("batch_item_failed", batch=self._name, error=type(error).__name__)
            self._fail(entries, error)
            return
        _splits.labels(self._name).inc()
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            await self._deliver([entry for entry in half if not entry.answer.done()])

    def _keep_waiting(
        self, entries: list[_Entry[T, R]], error: AutopilotError, now: float
    ) -> list[_Entry[T, R]]:
        kept: list[_Entry[T, R]] = []
        for entry in entries:
            if entry.answer.done():
                continue
            if now - entry.since < self._hold_s:
                kept.append(entry)
            else:
                entry.answer.set_exception(error)
        return kept

    @staticmethod
    def _settle(entries: list[_Entry[T, R]], results: Sequence[R | Exception]) -> None:
        if len(results) != len(entries):
            wrong = AutopilotError(f"a batch of {len(entries)} items got {len(results)} results")
            results = [wrong] * len(entries)
        for entry, result in zip(entries, results, strict=True):
            if entry.answer.done():
                continue
            if isinstance(result, Exception):
                entry.answer.set_exception(result)
            else:
                entry.answer.set_result(result)

    @staticmethod
    def _fail(entries: list[_Entry[T, R]], error: Exception) -> None:
        for entry in entries:
            if not entry.answer.done():
                entry.answer.set_exception(error)
