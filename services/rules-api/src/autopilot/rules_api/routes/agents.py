"""Agents (S6.8: edited by its owner or an admin, shared by its owner); private ones are hidden (S13.5)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import Conflict, InvalidValue, NotFound
from autopilot.domain.ids import AgentId, RuntimeId
from autopilot.domain.permissions import Action
from autopilot.domain.states import PauseReason
from autopilot.engine.revisions import check_rev
from autopilot.engine.system_edits import pause_dependents
from autopilot.kit.ids import uuid7
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.presence import is_sent, sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.agents import (
    AgentCreate,
    AgentPatch,
    AgentQuery,
    AgentView,
    ShareAdd,
    SharesView,
)
from autopilot.storage import agents, runtimes
from autopilot.storage.agents import Agent
from autopilot.storage.database import Conn


async def create_agent(call: Call, body: AgentCreate) -> AgentView:
    caller = call.caller
    caller.require(Action.AGENT_CREATE)
    agent_id = AgentId(uuid7())
    async with call.database.transaction() as conn:
        await agents.insert_agent(
            conn,
            agent_id=agent_id,
            workspace_id=caller.workspace_id,
            name=body.name,
            owner_id=caller.person,
            visibility=body.visibility,
            runtime_id=await _hold_runtime(conn, caller, body.runtime_id),
        )
        return _show(await _find(conn, caller, agent_id), caller)


async def list_agents(call: Call, query: AgentQuery) -> Page[AgentView]:
    caller = call.caller
    async with call.database.connection() as conn:
        found = await agents.list_agents(
            conn,
            caller.workspace_id,
            caller.user_id,
            archived=query.archived,
            before=query.before,
            limit=query.fetch,
        )
    return page_of(found, query, lambda agent: agent.id, lambda agent: _show(agent, caller))


async def get_agent(call: Call, agent_id: UUID) -> AgentView:
    async with call.database.connection() as conn:
        return _show(await _find(conn, call.caller, agent_id), call.caller)


async def update_agent(call: Call, agent_id: UUID, body: AgentPatch) -> AgentView:
    """Unbinding it from its runtime pauses the rules that need it (S11.5)."""
    caller, expected_rev = call.caller, expected_version(call, body.version)

    async def edit(conn: Conn) -> AgentView:
        held = await _hold_runtime(conn, caller, sent(body.runtime_id, None))
        agent = await _find_to_edit(conn, caller, agent_id)
        check_rev(agent.rev, expected_rev)
        if agent.archived_at is not None:
            raise Conflict("The agent is archived.", code="archived")
        visibility = sent(body.visibility, agent.visibility)
        if visibility is not agent.visibility:
            caller.require(Action.AGENT_SHARE, is_creator=_is_owner(agent, caller))
        runtime_id = held if is_sent(body.runtime_id) else agent.runtime_id
        await agents.update_agent(
            conn, agent.id, name=sent(body.name, agent.name), runtime_id=runtime_id, visibility=visibility
        )
        if agent.runtime_id is not None and runtime_id is None:
            await pause_dependents(
                conn, caller.workspace_id, PauseReason.AGENT_RUNTIME_REQUIRED, agents=[agent.id]
            )
        return _show(await _find(conn, caller, agent_id), caller)

    return await call.database.transact(edit)


async def archive_agent(call: Call, agent_id: UUID) -> None:
    """Pauses the rules that it executes (S11.5); repeating changes nothing."""
    caller, expected_rev = call.caller, expected_version(call)

    async def archive(conn: Conn) -> None:
        agent = await _find_to_edit(conn, caller, agent_id)
        check_rev(agent.rev, expected_rev)
        if agent.archived_at is None:
            await agents.archive_agent(conn, agent.id)
            await pause_dependents(
                conn, caller.workspace_id, PauseReason.TARGET_UNAVAILABLE, agents=[agent.id]
            )

    await call.database.transact(archive)


async def share_agent(call: Call, agent_id: UUID, body: ShareAdd) -> SharesView:
    """Let one member invoke it; repeating changes nothing."""
    async with call.database.transaction() as conn:
        agent = await _find_to_share(conn, call.caller, agent_id)
        await agents.insert_share(conn, call.caller.workspace_id, agent.id, body.user_id)
        return SharesView(shared_with=(await _find(conn, call.caller, agent_id)).shared_with)


async def unshare_agent(call: Call, agent_id: UUID, user_id: UUID) -> SharesView:
    """Let one member invoke it no longer; repeating changes nothing."""
    async with call.database.transaction() as conn:
        agent = await _find_to_share(conn, call.caller, agent_id)
        await agents.delete_share(conn, call.caller.workspace_id, agent.id, user_id)
        return SharesView(shared_with=(await _find(conn, call.caller, agent_id)).shared_with)


async def _find_to_edit(conn: Conn, caller: Caller, agent_id: UUID) -> Agent:
    await agents.lock_agent(conn, caller.workspace_id, agent_id)
    agent = await _find(conn, caller, agent_id)
    caller.require(Action.AGENT_EDIT, is_creator=_is_owner(agent, caller))
    return agent


async def _find_to_share(conn: Conn, caller: Caller, agent_id: UUID) -> Agent:
    await agents.lock_agent(conn, caller.workspace_id, agent_id)
    agent = await _find(conn, caller, agent_id)
    caller.require(Action.AGENT_SHARE, is_creator=_is_owner(agent, caller))
    return agent


async def _hold_runtime(conn: Conn, caller: Caller, runtime_id: UUID | None) -> RuntimeId | None:
    if runtime_id is None:
        return None
    held = await runtimes.hold_runtime(conn, caller.workspace_id, runtime_id)
    if held is None:
        raise InvalidValue("runtime_id", "runtime_id: there is no such runtime here.")
    return held


async def _find(conn: Conn, caller: Caller, agent_id: UUID) -> Agent:
    """The agent, if the caller may invoke or edit it; to everybody else a private one does not exist."""
    agent = await agents.find_agent(conn, caller.workspace_id, agent_id, caller.user_id)
    if agent is None or not (agent.invocable or _may_edit(agent, caller)):
        raise NotFound
    return agent


def _is_owner(agent: Agent, caller: Caller) -> bool:
    return agent.owner_id == caller.user_id


def _may_edit(agent: Agent, caller: Caller) -> bool:
    return caller.may(Action.AGENT_EDIT, is_creator=_is_owner(agent, caller))


def _show(agent: Agent, caller: Caller) -> AgentView:
    return AgentView(
        id=agent.id,
        name=agent.name,
        owner_id=agent.owner_id,
        visibility=agent.visibility,
        shared_with=agent.shared_with,
        runtime_id=agent.runtime_id,
        created_at=agent.created_at,
        archived_at=agent.archived_at,
        version=agent.rev,
        can_invoke=agent.invocable,
        can_edit=_may_edit(agent, caller),
        can_share=caller.may(Action.AGENT_SHARE, is_creator=_is_owner(agent, caller)),
    )


ROUTES = (
    post("/api/agents", create_agent, right=Action.AGENT_CREATE, refusals=(Code.NAME_TAKEN,)),
    get("/api/agents", list_agents),
    get("/api/agents/{agent_id}", get_agent),
    patch(
        "/api/agents/{agent_id}",
        update_agent,
        right=Action.AGENT_EDIT,
        refusals=(
            Code.NAME_TAKEN,
            Code.ARCHIVED,
        ),
    ),
    delete("/api/agents/{agent_id}", archive_agent, right=Action.AGENT_EDIT, versioned=True),
    post("/api/agents/{agent_id}/shares", share_agent, status=200, right=Action.AGENT_SHARE),
    delete("/api/agents/{agent_id}/shares/{user_id}", unshare_agent, right=Action.AGENT_SHARE),
)
