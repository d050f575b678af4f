"""API tokens: kept as hashes, looked up together with the caller's place in a workspace."""

from __future__ import annotations

import hashlib
from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("tokens")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a presented token opens. `live` is false once it expired or was revoked; `bound_to` is its own workspace.

    `workspace_id` is the bound workspace, else the one asked for if it exists; `role` is the person's there, if any.
    """

    token_id: TokenId
    kind: TokenKind
    user_id: UserId | None
    created_by: UserId
    bound_to: WorkspaceId | None
    live: bool
    workspace_id: WorkspaceId | None
    workspace_slug: str | None
    role: Role | None


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret; `hint` is how the secret begins and ends."""

    id: TokenId
    kind: TokenKind
    name: str
    hint: str
    user_id: UserId | None
    workspace_id: WorkspaceId | None
    created_by: UserId
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


def hash_token(secret: str) -> bytes:
    """What is kept of a token and what it is found by; tokens are random, so no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


async def find_access(
    conn: Conn, secret: str, *, workspace_id: UUID | None, workspace_slug: str | None
) -> Access | None:
    row = await conn.fetchrow(SQL["find_access"], hash_token(secret), workspace_id, workspace_slug)
    return msgspec.convert(dict(row), Access) if row is not None else None


async def insert_token(
    conn: Conn,
    *,
    token_id: TokenId,
    kind: TokenKind,
    name: str,
    secret: str,
    user_id: UserId | None,
    workspace_id: WorkspaceId | None,
    created_by: UserId,
    days: int,
) -> Token:
    hint = f"{secret[:4]}…{secret[-4:]}"
    row = await conn.fetchrow(
        SQL["insert_token"],
        token_id,
        kind,
        name,
        hash_token(secret),
        hint,
        user_id,
        workspace_id,
        days,
        created_by,
    )
    assert row is not None
    return msgspec.convert(dict(row), Token)


async def list_tokens(
    conn: Conn,
    user_id: UserId,
    *,
    bound_to: WorkspaceId | None,
    programs_of: WorkspaceId | None,
    before: UUID | None,
    limit: int,
) -> list[Token]:
    """The person's own tokens (those bound to `bound_to`, if given) and the service and runtime tokens of `programs_of`."""
    rows = await conn.fetch(SQL["list_tokens"], user_id, bound_to, programs_of, before, limit)
    return [msgspec.convert(dict(row), Token) for row in rows]


async def find_token(conn: Conn, token_id: UUID) -> Token | None:
    row = await conn.fetchrow(SQL["find_token"], token_id)
    return msgspec.convert(dict(row), Token) if row is not None else None


async def revoke_token(conn: Conn, token_id: TokenId) -> None:
    await conn.execute(SQL["revoke_token"], token_id)
