"""How rules fare: which had runs that ended, and what their newest runs and notices say (S7.14)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from autopilot.domain.health import Health, Limits
from autopilot.domain.ids import AutopilotId, RunId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("run_health")


class RuleHealth(msgspec.Struct, frozen=True, kw_only=True):
    """An active rule's health, with the newest run of each kind that it speaks of."""

    autopilot_id: AutopilotId
    title: str
    creator_id: UserId
    health: Health
    failed_run: RunId | None
    skipped_run: RunId | None
    completed_run: RunId | None


async def read_horizon(conn: Conn, job_name: str) -> tuple[datetime, datetime | None]:
    """The database's time, and when the newest plan of a job that succeeded began (None: none ever did)."""
    row = await conn.fetchrow(SQL["read_horizon"], job_name)
    assert row is not None
    return row["now"], row["began"]


async def list_rules_with_ends(
    conn: Conn, since: datetime, until: datetime
) -> list[tuple[WorkspaceId, AutopilotId]]:
    """The rules of which a run ended in [since, until) that nobody had started by hand."""
    rows = await conn.fetch(SQL["list_rules_with_ends"], since, until)
    return [(row["workspace_id"], row["autopilot_id"]) for row in rows]


async def assess(conn: Conn, ids: Sequence[AutopilotId], limits: Limits) -> list[RuleHealth]:
    """The health of those of the rules that are active."""
    given = (limits.streak, limits.notice_skips, limits.pause_percent)
    return [
        RuleHealth(
            autopilot_id=row["autopilot_id"],
            title=row["title"],
            creator_id=row["creator_id"],
            failed_run=row["failed_run"],
            skipped_run=row["skipped_run"],
            completed_run=row["completed_run"],
            health=Health(**{name: row[name] for name in Health.__struct_fields__}),
        )
        for row in await conn.fetch(SQL["assess"], list(ids), *given)
    ]
