"""What the commands of tasks print, in pieces, for people who look (S11.7): a mebibyte of each attempt, the newest."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from autopilot.domain.ids import LeaseToken, TaskId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("task_output")

KEPT_CHARACTERS: Final = 1024 * 1024


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Some text, and how many characters the attempt had printed before it."""

    place: int
    text: str
    created_at: datetime


async def add_output(conn: Conn, task_id: TaskId, lease: LeaseToken, place: int, text: str) -> bool:
    """Keep a piece, and let the oldest go where there is too much; False where this lease does not hold the task."""
    held = await conn.fetchval(SQL["add_output"], task_id, lease, place, text, KEPT_CHARACTERS)
    return held is not None


async def list_output(conn: Conn, task_id: TaskId, attempt: int, *, place: int, limit: int) -> list[Piece]:
    """The pieces of an attempt from `place` on."""
    return [Piece(**row) for row in await conn.fetch(SQL["list_output"], task_id, attempt, place, limit)]
