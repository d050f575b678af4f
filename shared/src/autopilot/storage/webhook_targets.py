"""What a webhook's token leads to: the trigger as it is now, and every fact that admission judges of its rule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from autopilot.domain.admission import Snapshot
from autopilot.domain.ids import TriggerId
from autopilot.storage import queries
from autopilot.storage.database import Conn
from autopilot.storage.facts import snapshot_of

SQL = queries.load("webhook_targets")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A live webhook trigger. `previous_secret_enc` is None once its grace is over; `read_at` is the database's clock."""

    trigger_id: TriggerId
    trigger_rev: int
    provider: str
    event_filters: object
    secret_enc: bytes | None
    previous_secret_enc: bytes | None
    snapshot: Snapshot
    read_at: datetime


async def find_targets(conn: Conn, token_hashes: Sequence[bytes]) -> dict[bytes, Target]:
    """The targets of many tokens by hash, in one statement; a token that leads nowhere is absent."""
    rows = await conn.fetch(SQL["find_targets"], token_hashes)
    return {
        row["token_hash"]: Target(
            trigger_id=row["trigger_id"],
            trigger_rev=row["trigger_rev"],
            provider=row["provider"],
            event_filters=row["event_filters"],
            secret_enc=row["secret_enc"],
            previous_secret_enc=row["previous_secret_enc"],
            snapshot=snapshot_of(row, row["trigger_id"]),
            read_at=row["read_at"],
        )
        for row in rows
    }
