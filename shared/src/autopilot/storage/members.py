"""People, and their places in workspaces."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import UserId, WorkspaceId
from autopilot.domain.permissions import Role
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("members")


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A person, known by an address in lower case."""

    id: UserId
    email: str
    name: str
    created_at: datetime


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person's place in a workspace."""

    user_id: UserId
    email: str
    name: str
    role: Role
    created_at: datetime


async def ensure_user(conn: Conn, *, user_id: UserId, email: str, name: str | None = None) -> User:
    """The person with this address; made now, with `user_id`, if nobody named them before."""
    address = email.strip().lower()
    row = await conn.fetchrow(SQL["find_user_by_email"], address)
    if row is None:
        shown = name or address.partition("@")[0][:100]
        row = await conn.fetchrow(SQL["insert_user"], user_id, address, shown)
    if row is None:
        row = await conn.fetchrow(SQL["find_user_by_email"], address)
    assert row is not None
    return msgspec.convert(dict(row), User)


async def insert_member(conn: Conn, workspace_id: WorkspaceId, user_id: UserId, role: Role) -> None:
    """ConstraintViolated (`member_pk`) if they are a member already."""
    await conn.execute(SQL["insert_member"], workspace_id, user_id, role)


async def ensure_member(conn: Conn, workspace_id: WorkspaceId, user_id: UserId, role: Role) -> None:
    """Make them a member with this role; one who is keeps theirs."""
    await conn.execute(SQL["insert_member_if_none"], workspace_id, user_id, role)


async def find_member(conn: Conn, workspace_id: WorkspaceId, user_id: UUID) -> Member | None:
    row = await conn.fetchrow(SQL["find_member"], workspace_id, user_id)
    return msgspec.convert(dict(row), Member) if row is not None else None


async def list_members(
    conn: Conn, workspace_id: WorkspaceId, *, before: UUID | None, limit: int
) -> list[Member]:
    rows = await conn.fetch(SQL["list_members"], workspace_id, before, limit)
    return [msgspec.convert(dict(row), Member) for row in rows]


async def lock_owners_and(conn: Conn, workspace_id: WorkspaceId, user_id: UUID) -> dict[UserId, Role]:
    """Hold the owners' and this member's rows; their roles, without `user_id` if they are no member."""
    rows = await conn.fetch(SQL["lock_owners_and"], workspace_id, user_id)
    return {row["user_id"]: Role(row["role"]) for row in rows}


async def lock_to_leave(conn: Conn, workspace_id: WorkspaceId, user_id: UserId) -> dict[UserId, Role]:
    """Hold this member's row against everybody who would tie something to it, and the owners' against other roles.

    Their roles, without `user_id` if they are no member.
    """
    roles = await lock_owners_and(conn, workspace_id, user_id)
    if user_id in roles:
        await conn.execute(SQL["lock_leaver"], workspace_id, user_id)
    return roles


async def find_role(conn: Conn, workspace_id: WorkspaceId, user_id: UserId) -> Role | None:
    found = await conn.fetchval(SQL["find_role"], workspace_id, user_id)
    return Role(found) if found is not None else None


async def delete_member(conn: Conn, workspace_id: WorkspaceId, user_id: UserId) -> None:
    """End a membership that the caller has locked; grants, subscriptions and shares go with it."""
    await conn.execute(SQL["delete_member"], workspace_id, user_id)


async def set_role(conn: Conn, workspace_id: WorkspaceId, user_id: UserId, role: Role) -> None:
    await conn.execute(SQL["set_role"], workspace_id, user_id, role)
