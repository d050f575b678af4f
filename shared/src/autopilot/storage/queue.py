"""The dispatch queue: entries under a lease, retries with a later time, waiters of queue_one (S10.1, S10.2, S3.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from autopilot.domain.ids import AutopilotId, LeaseToken, RunId, TriggerId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("queue")


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry held by a lease. `claims` counts this claim; `attempts` counts failures that were judged."""

    seq: int
    run_id: RunId
    autopilot_id: AutopilotId
    trigger_id: TriggerId | None
    size: int
    claims: int
    attempts: int

    @property
    def lost_claims(self) -> int:
        """How many earlier claims ended without any outcome, as when a process died holding them."""
        return self.claims - 1 - self.attempts


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt: which entry, the attempts so far with this one, when to try again, and why it failed."""

    seq: int
    attempts: int
    delay_s: float
    error: str


class ParkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waited behind another one until its deadline."""

    run_id: RunId
    trigger_id: TriggerId | None


async def lock_claimed(conn: Conn, seqs: Collection[int], token: LeaseToken) -> set[int]:
    """Lock the entries that this lease still holds; the others belong to somebody else by now."""
    rows = await conn.fetch(SQL["lock_claimed"], sorted(seqs), token)
    return {row["seq"] for row in rows}


async def delete_entries(conn: Conn, seqs: Collection[int]) -> None:
    """Remove locked entries whose runs leave pending in this transaction."""
    await conn.execute(SQL["delete_entries"], sorted(seqs))


async def give_back(conn: Conn, seqs: Collection[int], token: LeaseToken) -> None:
    """Free entries that this lease holds and did nothing with; others may claim them at once."""
    await conn.execute(SQL["give_back"], sorted(seqs), token)


async def defer_retries(conn: Conn, retries: Sequence[Retry]) -> None:
    """Move locked entries to their next attempt's time; their runs stay pending."""
    await conn.execute(
        SQL["defer_retries"],
        [retry.seq for retry in retries],
        [retry.attempts for retry in retries],
        [retry.delay_s for retry in retries],
        [retry.error for retry in retries],
    )


async def move_due(conn: Conn, *, limit: int) -> int:
    """Bring up to `limit` deferred entries that are due back into the queue; how many moved."""
    return int((await conn.execute(SQL["move_due"], limit)).rpartition(" ")[2])


async def lock_guarded_autopilots(conn: Conn, ids: Collection[AutopilotId]) -> list[AutopilotId]:
    """Lock those of the autopilots behind which a run may wait; decide only in later statements."""
    return [row["id"] for row in await conn.fetch(SQL["lock_guarded_autopilots"], sorted(ids))]


async def release_parked(conn: Conn, ids: Collection[AutopilotId]) -> list[RunId]:
    """Queue the waiters of locked autopilots that have nothing live in front of them any more."""
    return [row["run_id"] for row in await conn.fetch(SQL["release_parked"], sorted(ids))]


async def list_idle_parked(conn: Conn, *, limit: int) -> list[AutopilotId]:
    """Autopilots whose waiter is past its deadline or waits for nothing, read without locks."""
    return [row["autopilot_id"] for row in await conn.fetch(SQL["list_idle_parked"], limit)]


async def take_expired_parked(conn: Conn, ids: Collection[AutopilotId]) -> list[ParkedRun]:
    """Remove the entries of locked autopilots' waiters that are past their deadline."""
    rows = await conn.fetch(SQL["take_expired_parked"], sorted(ids))
    return [ParkedRun(run_id=row["run_id"], trigger_id=row["trigger_id"]) for row in rows]
