"""Runtimes as the workspace sees them; the runtime protocol writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, RuntimeId, UserId, WorkspaceId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("runtimes")


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime; `online` by the database's clock, `usable` as its last heartbeat said (S4.3).

    It holds as many tasks as its machine takes (`concurrency`), or as people allow it (`concurrency_limit`), if that is fewer.
    """

    id: RuntimeId
    workspace_id: WorkspaceId
    name: str
    registered_by: UserId | None
    concurrency: int
    concurrency_limit: int | None
    capabilities: dict[str, Any]
    created_at: datetime
    rev: int
    seen_at: datetime | None
    online: bool
    usable: bool
    detail: str | None
    repair_hint: str | None


async def find_runtime(
    conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID, *, online_within_s: float
) -> Runtime | None:
    row = await conn.fetchrow(SQL["find_runtime"], workspace_id, runtime_id, online_within_s)
    return msgspec.convert(dict(row), Runtime) if row is not None else None


async def list_runtimes(
    conn: Conn, workspace_id: WorkspaceId, *, online_within_s: float, before: UUID | None, limit: int
) -> list[Runtime]:
    rows = await conn.fetch(SQL["list_runtimes"], workspace_id, online_within_s, before, limit)
    return [msgspec.convert(dict(row), Runtime) for row in rows]


async def hold_runtime(conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID) -> RuntimeId | None:
    """Keep a runtime until the transaction ends; None if it is not here. Level 1 of the lock order, before agents."""
    row = await conn.fetchrow(SQL["hold_runtime"], workspace_id, runtime_id)
    return RuntimeId(row["id"]) if row is not None else None


async def lock_runtime(conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID) -> None:
    """Hold a runtime for an edit; read it in a later statement. Level 1 of the lock order, before agents."""
    await conn.execute(SQL["lock_runtime"], workspace_id, runtime_id)


async def update_runtime(
    conn: Conn, runtime_id: RuntimeId, *, name: str, concurrency_limit: int | None
) -> None:
    """New values for a runtime that the caller holds. ConstraintViolated (`runtime_name_unique`) for a name that is taken."""
    await conn.execute(SQL["update_runtime"], runtime_id, name, concurrency_limit)


async def delete_runtime(conn: Conn, workspace_id: WorkspaceId, runtime_id: RuntimeId) -> list[AgentId]:
    """Take a runtime that the caller holds out of use; the agents that were bound to it, now held and bound to nothing."""
    rows = await conn.fetch(SQL["unbind_agents"], workspace_id, runtime_id)
    await conn.execute(SQL["delete_runtime"], runtime_id)
    return [row["id"] for row in rows]
