"""Admitted, parked and skipped runs are born here, each with its queue entry, in one statement for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    RuleVersionId,
    RunId,
    SquadId,
    TokenId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import AttributionSource, ExecutionMode, ReasonCode, Source
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("run_admission")


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be born. `outcome` decides its status: admit and park are pending, skip and fail final with their reason.

    `park_until` is the deadline of a parked run. `idempotency_sha` is the SHA-256 of the request's body.
    """

    id: RunId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    trigger_id: TriggerId | None
    outcome: Literal["admit", "park", "skip", "fail"]
    source: Source
    execution_mode: ExecutionMode
    rule_version_id: RuleVersionId
    rule_version: int
    planned_at: datetime | None = None
    idempotency_key: str | None = None
    idempotency_actor: UserId | TokenId | None = None
    idempotency_sha: bytes | None = None
    event: str | None = None
    payload: bytes | None = None
    squad_id: SquadId | None = None
    agent_id: AgentId | None = None
    originator_id: UserId | None = None
    accountable_id: UserId | None = None
    attribution_source: AttributionSource | None = None
    api_token_id: TokenId | None = None
    reason_code: ReasonCode | None = None
    failure_reason: str | None = None
    missed_count: int | None = None
    park_until: datetime | None = None


_COLUMNS = NewRun.__struct_fields__


async def insert_runs(conn: Conn, runs: Sequence[NewRun]) -> set[RunId]:
    """Insert the runs with their queue entries; the ids that are new. A run whose plan or key exists already is absent.

    Webhook runs are born with their delivery instead (`storage.deliveries`).
    """
    if not runs:
        return set()
    rows = await conn.fetch(SQL["insert_runs"], *queries.columns(runs, _COLUMNS))
    return {row["id"] for row in rows}
