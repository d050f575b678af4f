"""A deadline ends its own block in time, and swallows nobody else's cancellation."""

from __future__ import annotations

import asyncio

import pytest

from autopilot.kit.deadline import Deadlines


async def test_what_takes_too_long_ends_with_a_timeout_and_the_task_goes_on() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError), Deadlines().until(loop.time() + 0.01):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with Deadlines().until(loop.time() + 60):
        await asyncio.sleep(0)


async def test_an_error_of_the_block_passes() -> None:
    with pytest.raises(KeyError), Deadlines().until(asyncio.get_running_loop().time() + 60):
        raise KeyError


async def test_each_block_has_a_time_of_its_own() -> None:
    """Those that are left end in their order, though one timer is for all; one that has ended takes nobody along."""
    loop = asyncio.get_running_loop()
    deadlines = Deadlines()
    ended: list[str] = []

    async def work(name: str, at: float, *, waits: bool) -> None:
        try:
            with deadlines.until(at):
                if waits:
                    await asyncio.Event().wait()
        except TimeoutError:
            ended.append(name)
            assert loop.time() >= at - 0.002

    now = loop.time()
    async with asyncio.TaskGroup() as group:
        group.create_task(work("quick", now + 0.01, waits=False))
        group.create_task(work("first", now + 0.02, waits=True))
        group.create_task(work("second", now + 0.05, waits=True))
        group.create_task(work("long", now + 60, waits=False))
    assert (ended, len(deadlines)) == (["first", "second"], 0)


async def test_a_timer_of_a_block_that_has_ended_holds_up_no_shorter_one() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines()
    with deadlines.until(loop.time() + 60):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), deadlines.until(loop.time() + 0.01):
        await asyncio.Event().wait()


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancellation_from_outside_is_no_timeout(late: bool) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        with Deadlines().until(loop.time() + (0.01 if late else 60.0)):
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
