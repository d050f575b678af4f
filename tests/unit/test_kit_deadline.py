"""A deadline ends its own block in time, and swallows nobody else's cancellation."""

from __future__ import annotations

import asyncio

import pytest

from autopilot.kit.deadline import Deadline


async def test_what_takes_too_long_ends_with_a_timeout_and_the_task_goes_on() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError), Deadline(loop.time() + 0.01):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with Deadline(loop.time() + 60):
        await asyncio.sleep(0)


async def test_an_error_of_the_block_passes() -> None:
    with pytest.raises(KeyError), Deadline(asyncio.get_running_loop().time() + 60):
        raise KeyError


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancellation_from_outside_is_no_timeout(late: bool) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        with Deadline(loop.time() + (0.01 if late else 60.0)):
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                if late:  # the deadline has ended the wait; whoever cancels now is not heard by it
                    other.cancel()

    other = asyncio.create_task(work())
    await entered.wait()
    if not late:
        other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
