"""Squads (S6.8: any member creates, its creator or an admin edits)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import Conflict, InvalidValue, NotFound
from autopilot.domain.ids import SquadId
from autopilot.domain.permissions import Action
from autopilot.domain.states import PauseReason
from autopilot.engine.revisions import check_rev
from autopilot.engine.system_edits import hand_to_leader, pause_dependents
from autopilot.kit.ids import uuid7
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.squads import SquadCreate, SquadPatch, SquadQuery, SquadView
from autopilot.storage import agents, squads
from autopilot.storage.agents import Agent
from autopilot.storage.database import Conn
from autopilot.storage.squads import Squad


async def create_squad(call: Call, body: SquadCreate) -> SquadView:
    caller = call.caller
    caller.require(Action.SQUAD_CREATE)
    squad_id = SquadId(uuid7())
    async with call.database.transaction() as conn:
        leader = await _hold_leader(conn, caller, body.leader_id)
        if leader.archived_at is not None:
            raise _no_leader()
        await squads.insert_squad(
            conn,
            squad_id=squad_id,
            workspace_id=caller.workspace_id,
            name=body.name,
            leader_id=leader.id,
            created_by=caller.person,
        )
        return _show(await _find(conn, caller, squad_id), caller)


async def list_squads(call: Call, query: SquadQuery) -> Page[SquadView]:
    caller = call.caller
    async with call.database.connection() as conn:
        found = await squads.list_squads(
            conn, caller.workspace_id, archived=query.archived, before=query.before, limit=query.fetch
        )
    return page_of(found, query, lambda squad: squad.id, lambda squad: _show(squad, caller))


async def get_squad(call: Call, squad_id: UUID) -> SquadView:
    async with call.database.connection() as conn:
        return _show(await _find(conn, call.caller, squad_id), call.caller)


async def update_squad(call: Call, squad_id: UUID, body: SquadPatch) -> SquadView:
    """Moving it to a leader that is archived, or without a runtime, pauses its rules (S11.5)."""
    caller, expected_rev = call.caller, expected_version(call, body.version)

    async def edit(conn: Conn) -> SquadView:
        squad = await _find_to_edit(conn, caller, squad_id)
        check_rev(squad.rev, expected_rev)
        if squad.archived_at is not None:
            raise Conflict("The squad is archived.", code="archived")
        leader_id = sent(body.leader_id, squad.leader_id)
        leader: Agent | None = None
        if leader_id is not None and leader_id != squad.leader_id:
            leader = await _hold_leader(conn, caller, leader_id)
        await squads.update_squad(
            conn,
            squad.id,
            name=sent(body.name, squad.name),
            leader_id=leader.id if leader is not None else squad.leader_id,
        )
        if leader is not None and (reason := _useless(leader)) is not None:
            await pause_dependents(conn, caller.workspace_id, reason, squad_id=squad.id)
        return _show(await _find(conn, caller, squad_id), caller)

    return await call.database.transact(edit)


async def archive_squad(call: Call, squad_id: UUID) -> None:
    """Its rules go to its leader (S11.5); repeating changes nothing."""
    caller, expected_rev = call.caller, expected_version(call)

    async def archive(conn: Conn) -> None:
        squad = await _find_to_edit(conn, caller, squad_id)
        check_rev(squad.rev, expected_rev)
        if squad.archived_at is not None:
            return
        await squads.archive_squad(conn, squad.id)
        if squad.leader_id is not None:
            await agents.hold_agent(conn, caller.workspace_id, squad.leader_id)
            await hand_to_leader(conn, caller.workspace_id, squad.id, squad.leader_id)
        else:
            await pause_dependents(
                conn, caller.workspace_id, PauseReason.TARGET_UNAVAILABLE, squad_id=squad.id
            )

    await call.database.transact(archive)


async def _hold_leader(conn: Conn, caller: Caller, leader_id: UUID) -> Agent:
    """The agent, held; one answer for what is unknown or private to others (S13.5)."""
    await agents.hold_agent(conn, caller.workspace_id, leader_id)
    leader = await agents.find_agent(conn, caller.workspace_id, leader_id, caller.user_id)
    if leader is None or not leader.invocable:
        raise _no_leader()
    return leader


def _no_leader() -> InvalidValue:
    return InvalidValue("leader_id", "leader_id: names no agent that you may have work here.")


def _useless(leader: Agent) -> PauseReason | None:
    """Why the rules of a squad with this leader cannot run."""
    if leader.archived_at is not None:
        return PauseReason.TARGET_UNAVAILABLE
    return PauseReason.AGENT_RUNTIME_REQUIRED if leader.runtime_id is None else None


async def _find_to_edit(conn: Conn, caller: Caller, squad_id: UUID) -> Squad:
    await squads.lock_squad(conn, caller.workspace_id, squad_id)
    squad = await _find(conn, caller, squad_id)
    caller.require(Action.SQUAD_EDIT, is_creator=squad.created_by == caller.user_id)
    return squad


async def _find(conn: Conn, caller: Caller, squad_id: UUID) -> Squad:
    squad = await squads.find_squad(conn, caller.workspace_id, squad_id)
    if squad is None:
        raise NotFound
    return squad


def _show(squad: Squad, caller: Caller) -> SquadView:
    return SquadView(
        id=squad.id,
        name=squad.name,
        leader_id=squad.leader_id,
        created_by=squad.created_by,
        created_at=squad.created_at,
        archived_at=squad.archived_at,
        version=squad.rev,
        can_edit=caller.may(Action.SQUAD_EDIT, is_creator=squad.created_by == caller.user_id),
    )


ROUTES = (
    post("/api/squads", create_squad, right=Action.SQUAD_CREATE, refusals=(Code.NAME_TAKEN,)),
    get("/api/squads", list_squads),
    get("/api/squads/{squad_id}", get_squad),
    patch(
        "/api/squads/{squad_id}",
        update_squad,
        right=Action.SQUAD_EDIT,
        refusals=(
            Code.NAME_TAKEN,
            Code.ARCHIVED,
        ),
    ),
    delete("/api/squads/{squad_id}", archive_squad, right=Action.SQUAD_EDIT, versioned=True),
)
