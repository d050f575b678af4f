"""Overlap policies at the end of a run: the lock before it, the release of the waiter after it (S3.6)."""

from __future__ import annotations

from collections.abc import Collection

from autopilot.domain.ids import AutopilotId, RunId
from autopilot.storage import queue
from autopilot.storage.database import Conn


async def lock_for_finish(conn: Conn, autopilot_ids: Collection[AutopilotId]) -> list[AutopilotId]:
    """Take the locks that a transaction needs before it ends runs, or last active tasks of issues, of these autopilots.

    Call it before any lock of level 3 or more (trigger, queue entry, run, issue, task); it locks in id order and only
    the autopilots with an overlap policy, or with a waiter left over from one. Admission decides under the same locks,
    so that it cannot park a run behind one that is just ending. Returns the locked ones, for `release_parked`.
    """
    if not autopilot_ids:
        return []
    return await queue.lock_guarded_autopilots(conn, set(autopilot_ids))


async def release_parked(conn: Conn, autopilot_ids: Collection[AutopilotId]) -> list[RunId]:
    """Queue the waiting run of each of these autopilots, unless something is still live in front of it.

    Call it after the statements that ended runs or tasks, in the same transaction, with what `lock_for_finish`
    returned. A parked entry is touched under its autopilot's lock alone, so this late step cannot deadlock.
    Returns the released runs: if there are any, wake the dispatcher after the commit.
    """
    if not autopilot_ids:
        return []
    return await queue.release_parked(conn, set(autopilot_ids))
