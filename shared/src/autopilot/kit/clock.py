"""Clocks: the host's for waiting and for display, and a fake one that jumps for tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """How code waits and how it shows a time. Durable time is the database's, never this one's (S1.4)."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds."""
        ...

    def now(self) -> datetime:
        """The host's idea of UTC, for logs and display only."""
        ...


class SystemClock:
    """The clock of the host."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now(self) -> datetime:
        return datetime.now(UTC)


# How many passes of the event loop may go by without news before an automatic clock calls it idle.
_IDLE_PASSES = 20


class FakeClock:
    """A clock that stands still until told to move, or, when `auto`, jumps to the next sleeper once all is idle.

    Idle means that the event loop found nothing to run; a task that waits for a socket looks idle too, so
    `auto` is for code without I/O.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, auto: bool = False) -> None:
        self._start = start
        self._elapsed = 0.0
        self._auto = auto
        self._armed = False
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        self._arm()
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own time and letting it run before the next."""
        end = self._elapsed + seconds
        await self._let_others_run()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._wake_next()
            await self._let_others_run()
        self._elapsed = max(self._elapsed, end)

    async def _let_others_run(self) -> None:
        for _ in range(_IDLE_PASSES):
            await asyncio.sleep(0)

    @property
    def sleeping(self) -> int:
        """How many sleeps are still waited for."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def _wake_next(self) -> None:
        deadline, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            self._elapsed = max(self._elapsed, deadline)
            woken.set_result(None)

    def _arm(self) -> None:
        if self._auto and not self._armed and self._sleepers:
            self._armed = True
            self._pass_by(_IDLE_PASSES)

    def _pass_by(self, passes: int) -> None:
        if passes:
            asyncio.get_running_loop().call_soon(self._pass_by, passes - 1)
            return
        self._armed = False
        if self._sleepers:
            self._wake_next()
        self._arm()
