"""Deadlines for what tasks do, for code that sets one on every request."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from types import TracebackType
from typing import Self


class Deadlines:
    """`with deadlines.until(at):` ends its block with TimeoutError when the loop's clock reaches `at`.

    What `asyncio.timeout_at` does, at a tenth of its price: whoever begins later ends later, so that one timer, for the
    oldest block, does for all. A block whose time comes before that of an older one may end as late as that one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: OrderedDict[_Deadline, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def __len__(self) -> int:
        """How many blocks are running."""
        return len(self._running)

    def until(self, at: float) -> _Deadline:
        """The deadline of a block, to be entered at once, by a task of this loop."""
        return _Deadline(self, at)

    def begin(self, deadline: _Deadline) -> asyncio.Task[object]:
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a deadline is set within a task")
        self._running[deadline] = None
        if deadline.at < self._looks_at:
            self._look_at(deadline.at)
        return task

    def end(self, deadline: _Deadline) -> None:
        self._running.pop(deadline, None)

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = at
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        now = self._loop.time()
        while self._running:
            oldest = next(iter(self._running))
            if oldest.at > now:
                self._look_at(oldest.at)
                return
            del self._running[oldest]
            oldest.strike()


class _Deadline:
    __slots__ = ("_all", "_cancelled_before", "_passed", "_task", "at")

    def __init__(self, deadlines: Deadlines, at: float) -> None:
        self._all = deadlines
        self.at = at
        self._passed = False

    def __enter__(self) -> Self:
        self._task = self._all.begin(self)
        self._cancelled_before = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._all.end(self)
        # Cancelled by somebody else at the same time, the task ends as cancelled.
        if (
            self._passed
            and self._task.uncancel() <= self._cancelled_before
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def strike(self) -> None:
        self._passed = True
        self._task.cancel()
