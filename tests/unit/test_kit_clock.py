"""The fake clock moves only when told, or jumps when all is idle."""

from __future__ import annotations

import asyncio
import time

from autopilot.kit.clock import FakeClock, SystemClock


async def test_sleepers_wake_in_the_order_of_their_deadlines_at_their_own_times() -> None:
    clock = FakeClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper("late", 20)), asyncio.create_task(sleeper("early", 10))]
    await asyncio.sleep(0)
    await clock.advance(9)
    assert woken == []
    await clock.advance(30)
    assert woken == [("early", 10), ("late", 20)]
    assert clock.monotonic() == 39
    await asyncio.gather(*tasks)


async def test_a_sleep_begun_while_advancing_counts_too() -> None:
    clock = FakeClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(60)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticker())
    await asyncio.sleep(0)
    await clock.advance(300)
    task.cancel()
    assert ticks == [60, 120, 180, 240, 300]


async def test_an_automatic_clock_runs_a_day_of_minutes_at_once() -> None:
    clock = FakeClock(auto=True)
    began = time.monotonic()
    for _ in range(24 * 60):
        await clock.sleep(60)
    assert clock.monotonic() == 86_400
    assert time.monotonic() - began < 5


async def test_a_cancelled_sleep_is_passed_over() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.sleeping == 0
    await clock.advance(20)
    assert clock.monotonic() == 20


async def test_the_system_clock_is_the_host_s() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now().utcoffset() is not None
