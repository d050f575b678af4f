"""Schedules computed with older zone data than this process has (S7.9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from autopilot.domain.ids import TriggerId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("schedule_zones")


class OutdatedTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to compute anew, stopped by an error where `next_run_at` is None; `now` is the database's clock when it was read."""

    id: TriggerId
    cron: str
    timezone: str
    next_run_at: datetime | None
    schedule_rev: int
    now: datetime


class Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """Its next occurrence by the newer data (None: never), or the error at which it stops."""

    was: OutdatedTrigger
    next_run_at: datetime | None
    error: str | None = None


async def list_outdated(conn: Conn, version: str, after: TriggerId, limit: int) -> list[OutdatedTrigger]:
    """Up to `limit` schedules with an id behind `after`, in id order."""
    return [OutdatedTrigger(**row) for row in await conn.fetch(SQL["list_outdated"], version, after, limit)]


async def recompute(conn: Conn, version: str, found: Sequence[Recomputed]) -> int:
    """Write them; how many were still as they had been read."""
    rows = await conn.fetch(
        SQL["recompute"],
        version,
        [one.was.id for one in found],
        [one.was.schedule_rev for one in found],
        [one.was.next_run_at for one in found],
        [one.next_run_at for one in found],
        [one.error for one in found],
    )
    return len(rows)
