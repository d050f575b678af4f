"""A deadline for what a task does, for code that sets one on every request."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadline:
    """`with Deadline(at):` ends its block with TimeoutError when the loop's clock reaches `at`.

    What `asyncio.timeout_at` does, at a third of its price, which is a thirtieth of a webhook's.
    """

    __slots__ = ("_at", "_cancelled_before", "_handle", "_passed", "_task")

    def __init__(self, at: float) -> None:
        self._at = at
        self._passed = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline is set within a task")
        self._task = task
        self._cancelled_before = task.cancelling()
        self._handle = task.get_loop().call_at(self._at, self._pass)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        # Cancelled by somebody else at the same time, the task ends as cancelled.
        if (
            self._passed
            and self._task.uncancel() <= self._cancelled_before
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def _pass(self) -> None:
        self._passed = True
        self._task.cancel()
