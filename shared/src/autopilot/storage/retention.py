"""Old history, found a page at a time and deleted where nothing needs it any more (S7.17, HAZARDS 30).

`keep` is how long a row is kept, judged by the database's clock. `delete_…` functions belong into a transaction that
does nothing else: they lock from runs down to deliveries, pass over what is locked, and answer how many rows went.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from autopilot.domain.ids import WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("retention")


async def find_old_runs(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next runs by id that may be old enough."""
    return await _ids(conn, SQL["find_old_runs"], after, keep, limit)


async def delete_runs(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete those of the runs that ended before `keep`, with their tasks, deliveries, slots and bodies.

    A run stays while its issue is open, a task of either is live, or its delivery was replayed or repeated lately.
    """
    locked = await _ids(conn, SQL["lock_runs"], ids, keep)
    if not locked:
        return 0
    deliveries = await _ids(conn, SQL["lock_deliveries_of_runs"], locked, keep)
    going = await conn.fetch(SQL["decide_runs"], locked, deliveries)
    run_ids = [row["id"] for row in going]
    delivery_ids = [row["delivery_id"] for row in going if row["delivery_id"] is not None]
    return _count(await conn.execute(SQL["delete_runs"], run_ids, delivery_ids))


async def find_old_deliveries(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next deliveries without a run, by id, that may be old enough."""
    return await _ids(conn, SQL["find_old_deliveries"], after, keep, limit)


async def delete_deliveries(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete those of the deliveries that ended without a run, with their bodies. One that was replayed stays."""
    locked = await _ids(conn, SQL["lock_deliveries"], ids, keep)
    count: int = await conn.fetchval(SQL["delete_deliveries"], locked) if locked else 0
    return count


async def find_old_bodies(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next deliveries by id whose body may be old enough."""
    return await _ids(conn, SQL["find_old_bodies"], after, keep, limit)


async def delete_bodies(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete the bodies of those of the deliveries that no live run needs, its own or that of a replay."""
    locked = await _ids(conn, SQL["lock_deliveries_of_bodies"], ids, keep)
    return _count(await conn.execute(SQL["delete_bodies"], locked)) if locked else 0


async def find_old_outputs(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next tasks by id whose output may be old enough."""
    return await _ids(conn, SQL["find_old_outputs"], after, keep, limit)


async def delete_outputs(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete what those of the tasks that are over had printed before `keep`."""
    return _count(await conn.execute(SQL["delete_outputs"], ids, keep))


async def find_old_items(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next inbox items by id that may be old enough."""
    return await _ids(conn, SQL["find_old_items"], after, keep, limit)


async def delete_items(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete those of the inbox items that are old enough, read or not."""
    return _count(await conn.execute(SQL["delete_items"], ids, keep))


async def find_old_executions(conn: Conn, keep: timedelta, after: UUID, limit: int) -> list[UUID]:
    """The next executions by id that may be old enough."""
    return await _ids(conn, SQL["find_old_executions"], after, keep, limit)


async def delete_executions(conn: Conn, keep: timedelta, ids: Sequence[UUID]) -> int:
    """Delete those of the executions that are final; a scope's newest stays."""
    return _count(await conn.execute(SQL["delete_executions"], ids, keep))


async def find_workspace_with_events(conn: Conn, after: UUID) -> WorkspaceId | None:
    """The next workspace by id that ever had an event."""
    found: WorkspaceId | None = await conn.fetchval(SQL["find_workspace_with_events"], after)
    return found


async def find_old_events(
    conn: Conn, workspace_id: WorkspaceId, keep: timedelta, after: int, limit: int
) -> list[int]:
    """The numbers of a workspace's next events, in order, none of which follows one that is kept."""
    rows = await conn.fetch(SQL["find_old_events"], workspace_id, after, keep, limit)
    return [row["seq"] for row in rows]


async def delete_events(conn: Conn, workspace_id: WorkspaceId, seqs: Sequence[int]) -> int:
    """Delete events that `find_old_events` found."""
    return _count(await conn.execute(SQL["delete_events"], workspace_id, seqs))


async def delete_statistics(conn: Conn, keep: timedelta, since: datetime, limit: int) -> list[datetime]:
    """Delete the oldest hours from `since` on; the hours of the rows that went."""
    return [row["hour"] for row in await conn.fetch(SQL["delete_statistics"], since, keep, limit)]


async def _ids(conn: Conn, sql: str, *arguments: object) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(sql, *arguments)]


def _count(status: str) -> int:
    return int(status.rpartition(" ")[2])
