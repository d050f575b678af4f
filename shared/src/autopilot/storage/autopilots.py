"""Autopilots and their subscribers: read, locked, written and listed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    ProjectId,
    RuleVersionId,
    SquadId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import (
    AssigneeType,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    PauseReason,
    RunStatus,
    TriggerKind,
)
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("autopilots")


class Autopilot(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as it is stored. `version` counts publications, `rev` every edit."""

    id: AutopilotId
    workspace_id: WorkspaceId
    title: str
    description: str
    execution_mode: ExecutionMode
    issue_title_template: str | None
    assignee_type: AssigneeType | None
    agent_id: AgentId | None
    squad_id: SquadId | None
    project_id: ProjectId | None
    overlap_policy: OverlapPolicy
    status: AutopilotStatus
    pause_reason: PauseReason | None
    creator_id: UserId
    rule_owner_id: UserId
    version: int
    version_id: RuleVersionId
    rev: int
    resumed_at: datetime
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None

    @property
    def assignee_id(self) -> AgentId | SquadId | None:
        return self.squad_id if self.assignee_type is AssigneeType.SQUAD else self.agent_id


class ListedAutopilot(Autopilot, frozen=True, kw_only=True):
    """A rule in a list, with what tells whether it works (S13.7). `next_run_at` is the earliest of its live schedules."""

    trigger_kinds: list[TriggerKind] | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_run_status: RunStatus | None


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The newest run of a rule, whatever its source."""

    created_at: datetime
    status: RunStatus


_COLUMNS = Autopilot.__struct_fields__
_UPDATED = (
    *("id", "title", "description", "execution_mode", "issue_title_template", "assignee_type", "agent_id"),
    *("squad_id", "project_id", "overlap_policy", "status", "pause_reason", "creator_id", "rule_owner_id"),
    *("version", "version_id", "rev", "resumed_at", "updated_at", "archived_at"),
)


async def find_autopilot(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId
) -> Autopilot | None:
    row = await conn.fetchrow(SQL["find_autopilot"], workspace_id, autopilot_id)
    return msgspec.convert(dict(row), Autopilot) if row is not None else None


async def lock_rules(conn: Conn, workspace_id: WorkspaceId, ids: Sequence[AutopilotId]) -> list[Autopilot]:
    """Take level 2 of the lock order; the rules as they are after the wait, in id order."""
    rows = await conn.fetch(SQL["lock_rules"], workspace_id, list(ids))
    return [msgspec.convert(dict(row), Autopilot) for row in rows]


async def insert_autopilot(conn: Conn, autopilot: Autopilot) -> None:
    await conn.execute(SQL["insert_autopilot"], *(getattr(autopilot, column) for column in _COLUMNS))


async def update_autopilot(conn: Conn, autopilot: Autopilot) -> None:
    """Write every editable field of a rule that the caller has locked."""
    await conn.execute(SQL["update_autopilot"], *(getattr(autopilot, column) for column in _UPDATED))


async def list_autopilots(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    status: AutopilotStatus | None,
    assignee_id: UUID | None,
    mode: ExecutionMode | None,
    limit: int,
) -> list[ListedAutopilot]:
    """Newest first, from below `before`; without a status everything that is not archived (S2.7)."""
    rows = await conn.fetch(SQL["list_autopilots"], workspace_id, before, status, assignee_id, mode, limit)
    return [msgspec.convert(dict(row), ListedAutopilot) for row in rows]


async def find_last_run(conn: Conn, autopilot_id: AutopilotId) -> LastRun | None:
    row = await conn.fetchrow(SQL["find_last_run"], autopilot_id)
    return msgspec.convert(dict(row), LastRun) if row is not None else None


async def list_dependents(
    conn: Conn,
    workspace_id: WorkspaceId,
    *,
    agents: Sequence[AgentId] = (),
    squad_id: SquadId | None = None,
) -> list[AutopilotId]:
    """The active rules executed by the agents (themselves or as squads' leaders) or assigned to the squad."""
    rows = await conn.fetch(SQL["list_dependents"], workspace_id, list(agents), squad_id)
    return [row["id"] for row in rows]


async def list_squad_rules(conn: Conn, workspace_id: WorkspaceId, squad_id: SquadId) -> list[AutopilotId]:
    rows = await conn.fetch(SQL["list_squad_rules"], workspace_id, squad_id)
    return [row["id"] for row in rows]


async def list_active_of(
    conn: Conn, workspace_id: WorkspaceId, creator_id: UserId, *, limit: int
) -> list[AutopilotId]:
    """The first active rules that a person created."""
    rows = await conn.fetch(SQL["list_active_of"], workspace_id, creator_id, limit)
    return [row["id"] for row in rows]


async def list_subscribers(conn: Conn, autopilot_id: AutopilotId) -> list[UserId]:
    rows = await conn.fetch(SQL["list_subscribers"], autopilot_id)
    return [row["user_id"] for row in rows]


async def replace_subscribers(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, users: Sequence[UserId]
) -> None:
    """Make `users`, whose memberships the caller holds, the whole list (S13.7)."""
    await conn.execute(SQL["delete_other_subscribers"], autopilot_id, list(users))
    await conn.execute(SQL["insert_subscribers"], workspace_id, autopilot_id, list(users))
