"""Snapshots for admission: every fact about an autopilot's target, readiness, permission and attribution at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from autopilot.domain.admission import Executor, Overlap, Snapshot, TriggerFacts
from autopilot.domain.attribution import Candidate
from autopilot.domain.ids import AutopilotId, TriggerId, UserId
from autopilot.domain.states import (
    AssigneeType,
    AttributionPolicy,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
)
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("facts")

Key = tuple[AutopilotId, TriggerId | None]


async def load_snapshots(conn: Conn, keys: Sequence[Key]) -> dict[Key, Snapshot]:
    """The snapshot for each (autopilot, trigger or None); a key whose autopilot does not exist is absent."""
    rows = await conn.fetch(SQL["load_snapshots"], [k[0] for k in keys], [k[1] for k in keys])
    return {
        (row["key_autopilot_id"], row["key_trigger_id"]): snapshot_of(row, row["key_trigger_id"])
        for row in rows
    }


async def clicker_has_share(conn: Conn, autopilot_id: AutopilotId, user_id: UserId) -> bool:
    """Whether the executor's agent is shared with this person (S4.4)."""
    return bool(await conn.fetchval(SQL["clicker_has_share"], autopilot_id, user_id))


async def lock_autopilots(conn: Conn, ids: Sequence[AutopilotId]) -> None:
    """Take level 2 of the lock order; decide only in statements after this one."""
    await conn.execute(SQL["lock_autopilots"], sorted(set(ids)))


async def read_overlap(conn: Conn, ids: Sequence[AutopilotId]) -> dict[AutopilotId, Overlap]:
    """What is in flight for autopilots that the caller has locked."""
    rows = await conn.fetch(SQL["read_overlap"], list(set(ids)))
    return {row["autopilot_id"]: Overlap(live=row["live"], parked=row["parked"]) for row in rows}


async def hold_started(conn: Conn, ids: Sequence[AutopilotId]) -> None:
    """Keep what is at work for autopilots that the caller has locked from ending; read overlap in a later statement."""
    await conn.execute(SQL["hold_started"], list(set(ids)))


async def database_now(conn: Conn) -> datetime:
    """The database's clock now, not the start of the transaction."""
    now = await conn.fetchval(SQL["database_now"])
    assert isinstance(now, datetime)
    return now


def executor_of(row: asyncpg.Record) -> Executor:
    """The columns of `executor_facts`."""
    return Executor(
        squad_archived=row["squad_archived"],
        agent_id=row["agent_id"],
        agent_archived=row["agent_archived"],
        agent_owner_id=row["agent_owner_id"],
        agent_owner_present=row["agent_owner_present"],
        agent_visibility=row["agent_visibility"],
        creator_has_share=row["creator_has_share"],
        runtime_id=row["runtime_id"],
        runtime_seen_at=row["runtime_seen_at"],
        runtime_usable=row["runtime_usable"],
        runtime_detail=row["runtime_detail"],
        runtime_repair_hint=row["runtime_repair_hint"],
    )


def snapshot_of(row: asyncpg.Record, trigger_id: TriggerId | None) -> Snapshot:
    """The columns of `admission_facts` with trigger_enabled, trigger_publisher_id and trigger_publisher_present."""
    return Snapshot(
        workspace_id=row["workspace_id"],
        autopilot_id=row["autopilot_id"],
        autopilot_rev=row["autopilot_rev"],
        autopilot_status=AutopilotStatus(row["autopilot_status"]),
        execution_mode=ExecutionMode(row["execution_mode"]),
        overlap_policy=OverlapPolicy(row["overlap_policy"]),
        assignee_type=AssigneeType(row["assignee_type"]) if row["assignee_type"] is not None else None,
        squad_id=row["squad_id"],
        executor=executor_of(row),
        creator_id=row["creator_id"],
        rule_owner=Candidate(user_id=row["rule_owner_id"], present=row["rule_owner_present"]),
        attribution_policy=AttributionPolicy(row["attribution_policy"]),
        rule_version=row["rule_version"],
        rule_version_id=row["rule_version_id"],
        trigger=_trigger_of(row, trigger_id) if trigger_id is not None else None,
    )


def _trigger_of(row: asyncpg.Record, trigger_id: TriggerId) -> TriggerFacts:
    publisher = row["trigger_publisher_id"]
    return TriggerFacts(
        trigger_id=trigger_id,
        enabled=row["trigger_enabled"],
        publisher=Candidate(user_id=publisher, present=row["trigger_publisher_present"])
        if publisher is not None
        else None,
    )
