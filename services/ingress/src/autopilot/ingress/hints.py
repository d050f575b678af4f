"""What replicas tell each other about callers: who is in debt, which tokens are good (S9.2). Hints, and nothing rests on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

import msgspec

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import abuse
from autopilot.ingress.limits import GoodTokens, SlidingMinute
from autopilot.kit import log
from autopilot.kit.ids import uuid7

GATHER_S = 0.05
_MAX_TOLD = 1000
_MAX_BYTES = 128 * 1024

_logger = log.get_logger()

Caller = Annotated[str, msgspec.Meta(max_length=64)]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Name = Annotated[bytes, msgspec.Meta(max_length=32)]


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one replica has learnt within a moment: bad credentials by caller, and names of good tokens."""

    sender: str
    debts: dict[Caller, Times] = {}
    good: tuple[Name, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hint).decode


class Hints:
    """Tells the others what this replica learns, gathered for a moment, and takes from them what they tell.

    A replica that hears nothing counts for itself alone; one that heard wrong refuses somebody for a minute at most.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sender = str(uuid7())
        self._debts: Counter[str] = Counter()
        self._good: dict[bytes, None] = {}
        self._gathering: asyncio.TimerHandle | None = None

    def listen(self, debt: SlidingMinute, good: GoodTokens) -> None:
        """Count what others tell into these, from now on."""
        self._bus.on_tell(abuse, lambda content: self._hear(content, debt, good))

    def tell_debt(self, caller: str) -> None:
        if caller in self._debts or len(self._debts) < _MAX_TOLD:
            self._debts[caller] += 1
            self._gather()

    def tell_good(self, name: bytes) -> None:
        if len(self._good) < _MAX_TOLD:
            self._good[name] = None
            self._gather()

    def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()

    def _gather(self) -> None:
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._say)

    def _say(self) -> None:
        self._gathering = None
        if not self._bus.tell(abuse, self._take):
            self._take()  # what could be told later would be old by then

    def _take(self) -> bytes:
        hint = Hint(sender=self._sender, debts=dict(self._debts), good=tuple(self._good))
        self._debts.clear()
        self._good.clear()
        return _encode(hint)

    def _hear(self, content: bytes, debt: SlidingMinute, good: GoodTokens) -> None:
        if len(content) > _MAX_BYTES:
            return
        try:
            hint = _decode(content)
        except msgspec.DecodeError as error:
            _logger.info("hint_unreadable", error=type(error).__name__)
            return
        if hint.sender == self._sender:
            return
        for caller, times in hint.debts.items():
            debt.heard(caller, times)
        for name in hint.good:
            good.heard(name)
