"""The waiting room: news is never missed between a look and a wait, and nobody is kept when it closes (S1.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from autopilot.rules_api.waiting import Waiters


class Looker:
    """What a poll finds, and for whom it asked."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.asked: list[set[str]] = []
        self.looked = asyncio.Event()

    async def __call__(self, keys: Collection[str]) -> Collection[str]:
        self.asked.append(set(keys))
        self.looked.set()
        return self.found


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_news_that_comes_while_looking_is_kept_for_the_wait() -> None:
    waiters = Waiters("x", Looker(), every_s=1.0)
    with waiters.waiting("a") as waiter:
        waiters.tell("a")
        assert await waiter.news(soon()) is True
        assert await waiter.news(soon(0)) is False


async def test_news_is_for_those_who_wait_for_that_key() -> None:
    waiters = Waiters("x", Looker(), every_s=1.0)
    with waiters.waiting("a") as one, waiters.waiting("a") as two, waiters.waiting("b") as other:
        waiters.tell("a")
        assert await one.news(soon())
        assert await two.news(soon())
        assert not await other.news(soon(0))
    waiters.tell("a")


async def test_a_poll_asks_once_for_all_and_not_at_all_for_nobody() -> None:
    look = Looker()
    waiters = Waiters("x", look, every_s=0.001)
    waiters.loop.start()
    try:
        with waiters.waiting("a") as waiter, waiters.waiting("a"), waiters.waiting("b"):
            look.found = {"a"}
            assert await waiter.news(soon())
            assert look.asked[0] == {"a", "b"}
        look.looked.clear()
        asked = len(look.asked)
        with waiters.waiting("c"):
            await asyncio.wait_for(look.looked.wait(), 5)
        assert look.asked[asked:][0] == {"c"}
    finally:
        await waiters.loop.stop()


async def test_closing_lets_everybody_go_and_keeps_no_newcomer() -> None:
    waiters = Waiters("x", Looker(), every_s=1.0)
    with waiters.waiting("a") as waiter:
        waits = asyncio.create_task(waiter.news(soon()))
        await asyncio.get_running_loop().create_task(_yield())
        waiters.drain()
        assert await waits is False
    with waiters.waiting("a") as late:
        waiters.tell("a")
        assert await late.news(soon()) is False


async def _yield() -> None:
    """Let others run once."""
