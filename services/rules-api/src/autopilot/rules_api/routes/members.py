"""Members of the workspace (S6.8)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from autopilot.domain.errors import Conflict, NotFound
from autopilot.domain.ids import UserId
from autopilot.domain.permissions import Action, Role
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import Call, get, patch, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.wire.workspaces import MemberAdd, MemberPatch, MemberView
from autopilot.storage import members
from autopilot.storage.database import Conn
from autopilot.storage.members import Member


async def list_members(call: Call, query: PageQuery) -> Page[MemberView]:
    async with call.database.connection() as conn:
        found = await members.list_members(
            conn, call.caller.workspace_id, before=query.before, limit=query.fetch
        )
    return page_of(found, query, lambda member: member.user_id, _show)


async def add_member(call: Call, body: MemberAdd) -> MemberView:
    call.caller.require(Action.MEMBER_MANAGE)
    if body.role is Role.OWNER:
        call.caller.require(Action.MEMBER_MAKE_OWNER)
    async with call.database.transaction() as conn:
        user = await members.ensure_user(conn, user_id=UserId(uuid7()), email=body.email, name=body.name)
        await members.insert_member(conn, call.caller.workspace_id, user.id, body.role)
        return _show(await _find(conn, call, user.id))


async def get_member(call: Call, user_id: UUID) -> MemberView:
    async with call.database.connection() as conn:
        return _show(await _find(conn, call, user_id))


async def update_member(call: Call, user_id: UUID, body: MemberPatch) -> MemberView:
    """Only an owner makes an owner or unmakes one, and the last one stays."""
    caller = call.caller
    async with call.database.transaction() as conn:
        roles = await members.lock_owners_and(conn, caller.workspace_id, user_id)
        present = roles.get(UserId(user_id))
        if present is None:
            raise NotFound
        caller.require(Action.MEMBER_MANAGE)
        role = sent(body.role, present)
        if role is not present:
            if Role.OWNER in (role, present):
                caller.require(Action.MEMBER_MAKE_OWNER)
            if present is Role.OWNER and list(roles.values()).count(Role.OWNER) == 1:
                raise Conflict("A workspace keeps at least one owner.", code="last_owner")
            await members.set_role(conn, caller.workspace_id, UserId(user_id), role)
        return _show(await _find(conn, call, user_id))


async def _find(conn: Conn, call: Call, user_id: UUID) -> Member:
    member = await members.find_member(conn, call.caller.workspace_id, user_id)
    if member is None:
        raise NotFound
    return member


def _show(member: Member) -> MemberView:
    return MemberView(**msgspec.structs.asdict(member))


ROUTES = (
    get("/api/members", list_members),
    post("/api/members", add_member, right=Action.MEMBER_MANAGE, refusals=(Code.ALREADY_MEMBER,)),
    get("/api/members/{user_id}", get_member),
    patch("/api/members/{user_id}", update_member, right=Action.MEMBER_MANAGE, refusals=(Code.LAST_OWNER,)),
)
