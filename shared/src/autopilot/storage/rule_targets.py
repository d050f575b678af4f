"""What a rule points at, held against change while the rule is saved (S4.7, level 1 of the lock order)."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.domain.admission import Executor
from autopilot.domain.ids import AgentId, ProjectId, SquadId, UserId, WorkspaceId
from autopilot.domain.permissions import Role
from autopilot.domain.states import AssigneeType
from autopilot.storage import queries
from autopilot.storage.database import Conn
from autopilot.storage.errors import Contention
from autopilot.storage.facts import executor_of

SQL = queries.load("rule_targets")


async def hold_members(conn: Conn, workspace_id: WorkspaceId, users: Iterable[UserId]) -> dict[UserId, Role]:
    """The roles of those who are members, none of whom can leave before the transaction ends."""
    rows = await conn.fetch(SQL["hold_members"], workspace_id, sorted(set(users)))
    return {row["user_id"]: Role(row["role"]) for row in rows}


async def hold_executor(
    conn: Conn,
    workspace_id: WorkspaceId,
    assignee_type: AssigneeType,
    assignee_id: AgentId | SquadId,
    judged_for: UserId,
) -> Executor:
    """Who would execute for an assignee, with the squad, runtime and agent held until the transaction ends.

    `creator_has_share` is that of `judged_for`. Raises Contention when the agent was rebound meanwhile.
    """
    is_squad = assignee_type is AssigneeType.SQUAD
    agent_id = await conn.fetchval(SQL["hold_squad"], workspace_id, assignee_id) if is_squad else assignee_id
    runtime_id = await conn.fetchval(SQL["find_runtime_of"], workspace_id, agent_id)
    await conn.execute(SQL["hold_runtime"], workspace_id, runtime_id)
    if await conn.fetchval(SQL["hold_agent"], workspace_id, agent_id) != runtime_id:
        raise Contention("the agent was bound to another runtime meanwhile")
    row = await conn.fetchrow(
        SQL["load_executor"],
        workspace_id,
        assignee_type,
        None if is_squad else assignee_id,
        assignee_id if is_squad else None,
        judged_for,
    )
    assert row is not None
    return executor_of(row)


async def hold_project(conn: Conn, workspace_id: WorkspaceId, project_id: ProjectId) -> bool:
    """Whether the project exists here; if so it stays until the transaction ends."""
    return await conn.fetchval(SQL["hold_project"], workspace_id, project_id) is not None
