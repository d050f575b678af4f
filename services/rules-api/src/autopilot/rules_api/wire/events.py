"""Run events over the wire: a cursor that outlives restores, and the word when it does not fit (S12.2)."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from autopilot.domain.events import RunEvent
from autopilot.rules_api.problems import malformed
from autopilot.rules_api.wire.common import Query
from autopilot.storage.events import EventHead

_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")

Cursor = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{_CURSOR.pattern}$"})]


class EventQuery(Query, frozen=True, kw_only=True):
    """Events after a cursor; without one, from the oldest that is kept."""

    after: Annotated[Cursor | None, msgspec.Meta(description="`cursor` of the answer before")] = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class StreamQuery(Query, frozen=True, kw_only=True):
    """A live stream after a cursor; `Last-Event-ID` wins. Without either, from now on."""

    after: Annotated[Cursor | None, msgspec.Meta(description="A cursor")] = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order without a hole, and the cursor to go on from.

    `reset`: the cursor given is none of this history (restored, or already removed): read the state anew, go on from here.
    """

    items: list[RunEvent]
    cursor: str
    reset: bool


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a workspace's sequence: after the event `seq` of an epoch."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"


def read_cursor(text: str, field: str) -> Position:
    """The place that a cursor names; 400 for what is none."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise malformed("The cursor is not one that events gave.", field)
    return Position(epoch=int(found[1]), seq=int(found[2]))


def fits(position: Position, head: EventHead) -> bool:
    """Whether everything after the position is kept (S12.3)."""
    return position.epoch == head.epoch and head.first_seq - 1 <= position.seq <= head.last_seq
