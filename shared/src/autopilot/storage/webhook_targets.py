"""What a webhook's token leads to: the trigger as it is now, and every fact that admission judges of its rule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from autopilot.domain.admission import Snapshot
from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.storage import queries
from autopilot.storage.database import Conn
from autopilot.storage.facts import snapshot_of

SQL = queries.load("webhook_targets")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A live webhook trigger. `previous_secret_enc` is None once its grace is over; `read_at` is the database's clock.

    `snapshot` is None where what admission judges could not be read, or not be understood by this release.
    """

    trigger_id: TriggerId
    trigger_rev: int
    autopilot_id: AutopilotId
    provider: str
    event_filters: object
    secret_enc: bytes | None
    previous_secret_enc: bytes | None
    snapshot: Snapshot | None
    read_at: datetime


async def find_targets(conn: Conn, token_hashes: Sequence[bytes]) -> dict[bytes, Target]:
    """The targets of many tokens by hash, in one statement; a token that leads nowhere is absent."""
    rows = await conn.fetch(SQL["find_targets"], token_hashes)
    return {row["token_hash"]: _target_of(row, _snapshot_of(row)) for row in rows}


async def find_triggers(conn: Conn, token_hashes: Sequence[bytes]) -> dict[bytes, Target]:
    """The same without a snapshot: what can still be read when the facts of admission cannot."""
    rows = await conn.fetch(SQL["find_triggers"], token_hashes)
    return {row["token_hash"]: _target_of(row, None) for row in rows}


def _snapshot_of(row: asyncpg.Record) -> Snapshot | None:
    try:
        return snapshot_of(row, row["trigger_id"])
    except ValueError:  # a state that a newer release knows, while both are running
        return None


def _target_of(row: asyncpg.Record, snapshot: Snapshot | None) -> Target:
    return Target(
        trigger_id=row["trigger_id"],
        trigger_rev=row["trigger_rev"],
        autopilot_id=row["autopilot_id"],
        provider=row["provider"],
        event_filters=row["event_filters"],
        secret_enc=row["secret_enc"],
        previous_secret_enc=row["previous_secret_enc"],
        snapshot=snapshot,
        read_at=row["read_at"],
    )
