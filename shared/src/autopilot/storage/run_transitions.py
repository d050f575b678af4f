"""How a pending run leaves that state: started, skipped or failed, with its delivery and its trigger's last time (S2, S10.4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from autopilot.domain.attribution import Attribution
from autopilot.domain.ids import AgentId, IssueId, RunId, SquadId, TaskId, TriggerId
from autopilot.domain.states import ReasonCode
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("run_transitions")


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """A run that starts: with an issue it becomes issue_created, without one running. `attempts` counts this one."""

    run_id: RunId
    task_id: TaskId
    issue_id: IssueId | None
    agent_id: AgentId
    squad_id: SquadId | None
    attribution: Attribution
    attempts: int


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ends without a start; None leaves what admission stored. `text` holds at most 2,000 characters."""

    run_id: RunId
    status: Literal["skipped", "failed"]
    code: ReasonCode
    text: str
    attempts: int
    agent_id: AgentId | None = None
    squad_id: SquadId | None = None
    attribution: Attribution | None = None
    error: str | None = None


async def start_runs(conn: Conn, starts: Sequence[RunStart]) -> set[RunId]:
    """Start pending runs whose queue entries the caller has locked; the ids of those that were pending."""
    rows = await conn.fetch(
        SQL["start_runs"],
        [start.run_id for start in starts],
        ["running" if start.issue_id is None else "issue_created" for start in starts],
        [start.issue_id for start in starts],
        [start.task_id for start in starts],
        [start.squad_id for start in starts],
        [start.agent_id for start in starts],
        [start.attribution.accountable for start in starts],
        [start.attribution.source for start in starts],
        [start.attempts for start in starts],
    )
    return {row["id"] for row in rows}


async def end_pending_runs(conn: Conn, ends: Sequence[RunEnd]) -> set[RunId]:
    """Skip or fail pending runs whose entries the caller has locked; the ids of those that were pending."""
    rows = await conn.fetch(
        SQL["end_pending_runs"],
        [end.run_id for end in ends],
        [end.status for end in ends],
        [end.code for end in ends],
        [end.text for end in ends],
        [end.squad_id for end in ends],
        [end.agent_id for end in ends],
        [end.attribution.accountable if end.attribution else None for end in ends],
        [end.attribution.source if end.attribution else None for end in ends],
        [end.attempts for end in ends],
        [end.error for end in ends],
    )
    return {row["id"] for row in rows}


async def settle_deliveries(conn: Conn, run_ids: Collection[RunId]) -> None:
    """Let the deliveries of runs that left pending in this transaction follow them (level 7 of the lock order)."""
    await conn.execute(SQL["settle_deliveries"], list(run_ids))


async def note_fired(conn: Conn, trigger_ids: Collection[TriggerId]) -> None:
    """Note that runs of these triggers have left pending now."""
    await conn.execute(SQL["note_fired"], list(trigger_ids))
