"""Ending a task for certain."""

from __future__ import annotations

import asyncio

import pytest

from autopilot.kit import tasks


async def test_a_task_that_swallows_its_first_cancellation_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_AGAIN_AFTER_S", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.end(task), timeout=5)
    assert task.cancelled()
    assert swallowed == 3


async def test_a_task_may_tidy_up_undisturbed_and_fail() -> None:
    tidied = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            tidied.set()
            raise OSError("while tidying up")

    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    await tasks.end(task)
    assert tidied.is_set()
    assert isinstance(task.exception(), OSError)
