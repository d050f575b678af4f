"""Rule versions: appended and read, never changed (S5.4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from autopilot.domain.ids import AutopilotId, RuleVersionId, UserId, WorkspaceId
from autopilot.domain.rules import Rule
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("versions")

PublisherType = Literal["user", "system"]


class Publisher(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers for a version: a person, or the system."""

    publisher_type: PublisherType
    published_by: UserId | None


class RuleVersion(Publisher, frozen=True, kw_only=True):
    """One publication; `rule` is the effective rule as it was written then, `edited_by` the person whose edit it was."""

    id: RuleVersionId
    version: int
    edited_by: UserId | None
    change: str
    rule: dict[str, Any]
    published_at: datetime


async def insert_version(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    *,
    version_id: RuleVersionId,
    version: int,
    publisher: Publisher,
    edited_by: UserId | None,
    change: str,
    rule: Rule,
) -> None:
    await conn.execute(
        SQL["insert_version"],
        version_id,
        workspace_id,
        autopilot_id,
        version,
        publisher.publisher_type,
        publisher.published_by,
        edited_by,
        change,
        rule,
    )


async def find_publisher(conn: Conn, version_id: RuleVersionId) -> Publisher:
    """Who published a version that exists."""
    row = await conn.fetchrow(SQL["find_publisher"], version_id)
    assert row is not None
    return msgspec.convert(dict(row), Publisher)


async def list_versions(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, *, before: int | None, limit: int
) -> list[RuleVersion]:
    """Newest first, from below the number `before`."""
    rows = await conn.fetch(SQL["list_versions"], autopilot_id, workspace_id, before, limit)
    return [msgspec.convert(dict(row), RuleVersion) for row in rows]
