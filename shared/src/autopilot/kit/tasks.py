"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

# Long enough for a task to tidy up after the first cancellation undisturbed.
_AGAIN_AFTER_S = 3.0


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it is done, without raising what it ended with.

    Once is not enough: before Python 3.12 `asyncio.wait_for` forgets a cancellation that arrives in the moment its inner
    wait ends, and the libraries here use it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_AFTER_S)
