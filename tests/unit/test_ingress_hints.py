"""What replicas of ingress tell each other about callers, and what they make of what they hear (S9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from autopilot.bus.connection import Bus
from autopilot.ingress import hints as module
from autopilot.ingress.hints import Hint, Hints
from autopilot.ingress.limits import GoodTokens, SlidingMinute


class Wire:
    """A bus to which nobody else listens: what is told comes back at once, as NATS does it."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.said: list[bytes] = []
        self._listeners: list[Callable[[bytes], None]] = []

    def tell(self, _subject: str, content: Callable[[], bytes]) -> bool:
        if self.up:
            self.hear(content())
        return self.up

    def on_tell(self, _subject: str, callback: Callable[[bytes], None]) -> None:
        self._listeners.append(callback)

    def hear(self, content: bytes) -> None:
        self.said.append(content)
        for listener in self._listeners:
            listener(content)


class Replica:
    """What one process counts."""

    def __init__(self, wire: Wire) -> None:
        self.hints = Hints(cast("Bus", wire))
        self.debt = SlidingMinute(3, lambda: 0.0, tell=self.hints.tell_debt)
        self.good = GoodTokens(lambda: 0.0, tell=self.hints.tell_good)
        self.hints.listen(self.debt, self.good)


@pytest.fixture(autouse=True)
def _gather_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_S", 0.0)


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def a_moment() -> None:
    """Until the timers that are due have run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_one_counts_counts_for_the_other_and_once_for_itself(wire: Wire) -> None:
    one, two = Replica(wire), Replica(wire)
    for _ in range(2):
        one.debt.charge("192.0.2.1")
    one.good.note(bytes(32))
    await a_moment()
    assert len(wire.said) == 1
    assert two.debt.wait_s("192.0.2.1") == one.debt.wait_s("192.0.2.1") == 0
    two.debt.charge("192.0.2.1")
    await a_moment()
    assert (two.debt.wait_s("192.0.2.1"), one.debt.wait_s("192.0.2.1")) == (60, 60)
    assert bytes(32) in two.good


async def test_what_could_not_be_told_is_not_told_later(wire: Wire) -> None:
    one, two = Replica(wire), Replica(wire)
    wire.up = False
    for _ in range(3):
        one.debt.charge("192.0.2.1")
    await a_moment()
    wire.up = True
    one.debt.charge("192.0.2.2")
    await a_moment()
    assert [two.debt.wait_s(f"192.0.2.{number}") for number in (1, 2)] == [0, 0]
    assert msgspec.json.decode(wire.said[0], type=Hint).debts == {"192.0.2.2": 1}


async def test_a_flood_of_callers_makes_no_endless_hint(wire: Wire) -> None:
    one = Replica(wire)
    for number in range(5000):
        one.debt.charge(f"caller {number}")
        one.good.note(number.to_bytes(32))
    await a_moment()
    assert len(wire.said) == 1
    assert len(wire.said[0]) < 64 * 1024


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"sender": "x", "debts": {"a": 0}}',
        b'{"sender": "x", "debts": {"a": 1e9}}',
        b'{"sender": "x", "good": ["?"]}',
        b'{"sender": "x", "debts": {"' + b"a" * 65 + b'": 1}}',
        b'{"sender": "' + b"x" * 200_000 + b'", "debts": {"a": 3}}',
    ],
    ids=["empty", "bytes", "list", "nobody", "none", "too often", "no name", "no address", "too large"],
)
async def test_what_is_no_hint_changes_nothing(wire: Wire, nonsense: bytes) -> None:
    one = Replica(wire)
    wire.hear(nonsense)
    assert (len(one.debt), one.debt.wait_s("a")) == (0, 0)
    wire.hear(b'{"sender": "newer", "debts": {"a": 3}, "more": true}')
    assert one.debt.wait_s("a") == 60
