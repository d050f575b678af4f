"""Run events: from the outbox to a dense sequence per workspace, from there to readers and the relay (S12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from autopilot.domain.events import EventKind, RunEvent
from autopilot.domain.ids import LeaseToken, TokenId, WorkspaceId
from autopilot.domain.states import ReasonCode, RunStatus, Source
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("events")


class EventHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a workspace's sequence spans: a cursor of another epoch, above `last_seq` or below `first_seq` − 1 needs a reset."""

    epoch: int
    last_seq: int
    first_seq: int


class RelayLease(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace whose events this process relays, and the last one that is confirmed."""

    workspace_id: WorkspaceId
    relayed_seq: int


class Transition(NamedTuple):
    """What an event tells of its run, without saying of which."""

    source: Source
    status: RunStatus
    reason: ReasonCode | None


class Horizon(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of the outbox: once `oldest` of a later one is above `youngest` of this one, whoever drew an id up to
    `given` has committed or is gone. Both are of one database only if `history` is the same."""

    given: int
    youngest: int
    oldest: int
    history: str


async def open_heads(conn: Conn, limit: int, *, above: int = 0) -> bool:
    """Give each workspace among the first `limit` outbox rows above an id its head; whether there is any such row.

    In autocommit, so that no sequencer waits for it.
    """
    return bool(await conn.fetchval(SQL["open_heads"], limit, above))


async def sequence(conn: Conn, limit: int, *, above: int = 0) -> Counter[Transition]:
    """Number up to `limit` events with ids above one in commit order, within the caller's transaction; how many of which.

    Only workspaces with a head (`open_heads`) whom no other sequencer works on. It locks `event_head` rows, which are
    the sequencer's alone, so the transaction should do nothing else.
    """
    workspaces = [row["workspace_id"] for row in await conn.fetch(SQL["lock_heads"], limit, above)]
    if not workspaces:
        return Counter()
    return Counter(
        {
            Transition(
                Source(row["source"]), RunStatus(row["status"]), row["reason"] and ReasonCode(row["reason"])
            ): row["events"]
            for row in await conn.fetch(SQL["sequence"], workspaces, limit, above)
        }
    )


async def read_horizon(conn: Conn) -> Horizon:
    """This moment of the outbox. An id is drawn by a transaction that has its number already: first the id, then the numbers."""
    given = await conn.fetchval(SQL["read_given_id"])
    row = await conn.fetchrow(SQL["read_transactions"])
    assert row is not None
    return Horizon(given=given, youngest=row["youngest"], oldest=row["oldest"], history=row["history"])


async def find_first_id(conn: Conn, *, above: int, up_to: int) -> int | None:
    """The first id that the outbox has a row of."""
    found: int | None = await conn.fetchval(SQL["find_first_id"], above, up_to)
    return found


async def read_after(conn: Conn, workspace_id: WorkspaceId, seq: int, limit: int) -> list[RunEvent]:
    """The workspace's events after `seq`, in order and without a hole: none below can still appear (S12.3)."""
    return [_event_of(row) for row in await conn.fetch(SQL["read_after"], workspace_id, seq, limit)]


async def read_head(conn: Conn, workspace_id: WorkspaceId) -> EventHead:
    """The span of the workspace's sequence; an empty one before the first event."""
    row = await conn.fetchrow(SQL["read_head"], workspace_id)
    if row is None:
        return EventHead(epoch=1, last_seq=0, first_seq=1)
    return EventHead(epoch=row["epoch"], last_seq=row["last_seq"], first_seq=row["first_seq"])


async def read_last_seqs(conn: Conn, ids: Collection[WorkspaceId]) -> dict[WorkspaceId, int]:
    """How far each of these workspaces' sequence goes; one without any event is absent."""
    rows = await conn.fetch(SQL["read_last_seqs"], list(ids))
    return {row["workspace_id"]: row["last_seq"] for row in rows}


async def find_welcome(
    conn: Conn, listeners: Collection[tuple[TokenId, WorkspaceId]]
) -> set[tuple[TokenId, WorkspaceId]]:
    """Of those who listen with a token in a workspace: whose token is still live and whose person is still a member."""
    tokens, workspaces = [token for token, _ in listeners], [workspace for _, workspace in listeners]
    rows = await conn.fetch(SQL["find_welcome"], tokens, workspaces)
    return {(row["token_id"], row["workspace_id"]) for row in rows}


async def lease_relays(
    conn: Conn, token: LeaseToken, *, after: UUID, lease_s: float, limit: int
) -> list[RelayLease]:
    """Take workspaces, by id behind `after`, that have unconfirmed events and no relay; in order."""
    rows = await conn.fetch(SQL["lease_relays"], token, lease_s, limit, after)
    leases = [RelayLease(workspace_id=row["workspace_id"], relayed_seq=row["relayed_seq"]) for row in rows]
    return sorted(leases, key=lambda lease: lease.workspace_id)


async def advance_relay(
    conn: Conn, workspace_id: WorkspaceId, token: LeaseToken, seq: int, *, lease_s: float | None
) -> bool:
    """Note that everything up to `seq` is in the stream, and keep the lease, or let it go with None; False: it is lost."""
    return await conn.fetchval(SQL["advance_relay"], workspace_id, token, seq, lease_s) is not None


async def release_relay(conn: Conn, workspace_id: WorkspaceId, token: LeaseToken) -> None:
    """Let go of a workspace; nothing happens if the lease is lost already."""
    await conn.execute(SQL["release_relay"], workspace_id, token)


def _event_of(row: asyncpg.Record) -> RunEvent:
    return msgspec.convert(
        row["payload"]
        | {
            "event_id": row["event_id"],
            "epoch": row["epoch"],
            "seq": row["seq"],
            "kind": EventKind(row["kind"]),
            "workspace_id": row["workspace_id"],
            "autopilot_id": row["autopilot_id"],
            "run_id": row["run_id"],
            "occurred_at": row["occurred_at"],
        },
        RunEvent,
    )
