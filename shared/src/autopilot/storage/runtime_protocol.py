"""What the runtime protocol reads and writes: registrations, heartbeats, claims by lease, renewals (S11.3, S11.7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    IssueId,
    LeaseToken,
    RunId,
    RuntimeId,
    TaskId,
    TokenId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import Source, TaskStatus
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("runtime_protocol")


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its runtime is told of it."""

    id: TaskId
    lease_token: LeaseToken
    lease_until: datetime
    prompt: str
    attempt: int
    max_attempts: int
    timeout_s: int
    workspace_id: WorkspaceId
    agent_id: AgentId
    agent_name: str
    issue_id: IssueId | None
    issue_key: str | None
    run_id: RunId | None
    autopilot_id: AutopilotId | None
    source: Source | None
    planned_at: datetime | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim got. `misfits` are queued tasks that belong to nothing here (S4.7), for the caller to refuse.

    `in_turn` is false, and there is nothing, where another claim of the same runtime has begun since `turn` has.
    """

    turn: LeaseToken
    in_turn: bool
    tasks: list[ClaimedTask]
    misfits: list[TaskId]


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """One task to be renewed by the lease that holds it; `progress` None leaves what was told before."""

    id: TaskId
    lease_token: LeaseToken
    progress: str | None = None


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose lease was the one presented; `alive` is false once its time is over or it has ended."""

    status: TaskStatus
    lease_until: datetime | None
    alive: bool


class RegisteredRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime that has registered: how people call it, and how many tasks it may hold."""

    id: RuntimeId
    name: str
    concurrency: int


async def register_runtime(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    runtime_id: RuntimeId,
    name: str,
    registered_by: UserId,
    token_id: TokenId,
    concurrency: int,
    capabilities: dict[str, Any],
) -> RegisteredRuntime:
    """The runtime of this name, new under `runtime_id` or the one that is there, with what it says of itself now.

    ConstraintViolated (`runtime_name_unique`) where people call another runtime so.
    """
    row = await conn.fetchrow(
        SQL["register_runtime"],
        runtime_id,
        workspace_id,
        name,
        registered_by,
        token_id,
        concurrency,
        capabilities,
    )
    assert row is not None
    return RegisteredRuntime(**row)


async def beat(
    conn: Conn,
    workspace_id: WorkspaceId,
    runtime_id: UUID,
    *,
    usable: bool,
    detail: str | None,
    repair_hint: str | None,
) -> bool:
    """Note a heartbeat; False where there is no such runtime here."""
    return await conn.fetchval(SQL["beat"], workspace_id, runtime_id, usable, detail, repair_hint) is not None


async def touch(conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID) -> bool | None:
    """Note that a runtime was heard of: whether it is usable, None where there is no such runtime here.

    Holds the runtime's heartbeat until the transaction ends (level 1 of the lock order).
    """
    row = await conn.fetchrow(SQL["touch"], workspace_id, runtime_id)
    return bool(row["usable"]) if row is not None else None


async def begin_claim(
    conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID, turn: LeaseToken, *, apart: bool
) -> bool:
    """Note that a runtime was heard of and that `turn` claims from now on; False where there is none here.

    `apart`: a transaction of its own, committed before the claim. Else in the claim's, which nobody overtakes then.
    """
    return await conn.fetchval(SQL["begin_claim"], workspace_id, runtime_id, turn, apart) is not None


async def forget(conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID) -> None:
    """Let a runtime be offline at once; a repeat changes nothing."""
    await conn.execute(SQL["forget"], workspace_id, runtime_id)


async def claim(
    conn: Conn,
    workspace_id: WorkspaceId,
    runtime_id: RuntimeId,
    claim_id: UUID,
    *,
    turn: LeaseToken,
    limit: int,
    spare: int,
    lease_s: float,
) -> Claim:
    """What the runtime holds under `claim_id` already, else up to `limit` of its agents' tasks; nothing if it is not `turn`'s.

    Locks the heartbeat, for which it may wait, then issues and tasks; `spare` candidates more are read than may be taken.
    """
    rows = await conn.fetch(SQL["claim"], workspace_id, runtime_id, claim_id, limit, lease_s, spare, turn)
    return Claim(
        turn=turn,
        in_turn=rows[0]["in_turn"],
        tasks=[_claimed_of(row) for row in rows if row["id"] is not None],
        misfits=list(rows[0]["misfits"]),
    )


async def start_task(
    conn: Conn, task_id: TaskId, lease: LeaseToken, *, lease_s: float, grace_s: float
) -> bool:
    """Note that the agent's work begins; False where this lease does not hold the task."""
    return await conn.fetchval(SQL["start_task"], task_id, lease, lease_s, grace_s) is not None


async def renew_tasks(
    conn: Conn, runtime_id: RuntimeId, renewals: Sequence[Renewal], *, lease_s: float, grace_s: float
) -> dict[TaskId, Renewed]:
    """Renew by lease; a task that another lease holds is absent. No lease reaches `grace_s` beyond the task's time."""
    rows = await conn.fetch(
        SQL["renew_tasks"],
        runtime_id,
        [renewal.id for renewal in renewals],
        [renewal.lease_token for renewal in renewals],
        [renewal.progress for renewal in renewals],
        lease_s,
        grace_s,
    )
    return {
        row["id"]: Renewed(
            status=TaskStatus(row["status"]), lease_until=row["lease_until"], alive=row["alive"]
        )
        for row in rows
    }


def _claimed_of(row: asyncpg.Record) -> ClaimedTask:
    fields = dict(row)
    del fields["in_turn"], fields["misfits"]
    return msgspec.convert(fields, ClaimedTask)


async def find_waiting(conn: Conn, ids: Collection[RuntimeId]) -> set[RuntimeId]:
    """Those of the runtimes for which a task waits that they may take."""
    return {row["id"] for row in await conn.fetch(SQL["find_waiting"], list(ids))}
