"""What waits at each step from a due occurrence to an event in the stream, and since when: gauges that need no traffic (S15)."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from autopilot.domain.admission import ONLINE_WITHIN
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("backlog")

Kind = Literal["occurrence", "delivery", "run", "retry", "paced", "parked", "task", "event", "relay"]
"""Due and not admitted; kept undecided; to be dispatched; to be tried again; held back by a pace or behind another run; to be
claimed by a runtime; not numbered; not confirmed by the stream."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# What is deferred waits for its time: it is never late before it is back in the queue.
TIMELESS: Final[frozenset[Kind]] = frozenset({"retry", "paced", "parked"})


class Waiting(msgspec.Struct, frozen=True):
    """How many items wait, and for how many seconds the oldest that could go on has; 0 where none could."""

    items: int
    oldest_s: float


async def measure(conn: Conn, *, count_to: int = 10_000) -> dict[Kind, Waiting]:
    """Everything that waits, by kind; exact up to `count_to`."""
    rows = await conn.fetch(SQL["measure"], count_to, ONLINE_WITHIN.total_seconds())
    return {row["kind"]: Waiting(row["items"], row["oldest_s"]) for row in rows}
