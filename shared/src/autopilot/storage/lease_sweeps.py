"""Tasks that a sweep has to end: their lease ran out, or nobody claimed them (S11.3); looked at without a lock."""

from __future__ import annotations

from datetime import datetime

import msgspec

from autopilot.domain.ids import RuntimeId, TaskId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("lease_sweeps")


class SweptTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is overdue since `due_at`; `runtime_id` is worth a wake-up once it is queued again."""

    id: TaskId
    due_at: datetime
    runtime_id: RuntimeId | None


async def list_lost_tasks(conn: Conn, after: SweptTask | None, limit: int) -> list[SweptTask]:
    """Held tasks whose lease ran out, longest ago first."""
    return await _list(conn, SQL["list_lost_tasks"], after, limit)


async def list_expired_tasks(conn: Conn, after: SweptTask | None, limit: int) -> list[SweptTask]:
    """Queued tasks that nobody claimed in time, longest ago first."""
    return await _list(conn, SQL["list_expired_tasks"], after, limit)


async def _list(conn: Conn, query: str, after: SweptTask | None, limit: int) -> list[SweptTask]:
    cursor = (after.due_at, after.id) if after is not None else (None, None)
    return [SweptTask(**row) for row in await conn.fetch(query, *cursor, limit)]
