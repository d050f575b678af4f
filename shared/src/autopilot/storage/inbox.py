"""What people are told, each in their own inbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, IssueId, RunId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("inbox")


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an inbox, with what it is about; `read_at` is None until its person has read it."""

    id: UUID
    kind: str
    title: str
    autopilot_id: AutopilotId | None
    run_id: RunId | None
    issue_id: IssueId | None
    created_at: datetime
    read_at: datetime | None


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line about a rule, for one person."""

    id: UUID
    user_id: UserId
    kind: str
    title: str
    autopilot_id: AutopilotId
    run_id: RunId | None


async def list_watchers(conn: Conn, workspace_id: WorkspaceId, users: Sequence[UserId]) -> dict[UserId, bool]:
    """The owners and admins of a workspace, and those of the users who are members; True for owners and admins."""
    rows = await conn.fetch(SQL["list_watchers"], workspace_id, list(users))
    return {row["user_id"]: row["runs_it"] for row in rows}


async def insert_items(conn: Conn, workspace_id: WorkspaceId, items: Sequence[NewItem]) -> None:
    """Put lines into inboxes."""
    columns = [[getattr(item, field) for item in items] for field in NewItem.__struct_fields__]
    await conn.execute(SQL["insert_items"], workspace_id, *columns)


async def list_items(
    conn: Conn,
    workspace_id: WorkspaceId,
    user_id: UserId,
    *,
    before: UUID | None,
    unread: bool,
    limit: int,
) -> list[InboxItem]:
    """A person's inbox, newest first."""
    rows = await conn.fetch(SQL["list_items"], workspace_id, user_id, before, unread, limit)
    return [InboxItem(**row) for row in rows]


async def mark_read(
    conn: Conn, workspace_id: WorkspaceId, user_id: UserId, item_id: UUID
) -> InboxItem | None:
    """Note that a person has read a line of theirs; the first time counts. None where they have no such line."""
    row = await conn.fetchrow(SQL["mark_read"], workspace_id, user_id, item_id)
    return InboxItem(**row) if row is not None else None


async def mark_all_read(conn: Conn, workspace_id: WorkspaceId, user_id: UserId, until: UUID) -> int:
    """Note that a person has read all their lines up to that one; how many they had not read before."""
    status: str = await conn.execute(SQL["mark_all_read"], workspace_id, user_id, until)
    return int(status.rpartition(" ")[2])
