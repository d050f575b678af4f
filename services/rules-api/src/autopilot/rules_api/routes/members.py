"""Members of the workspace (S6.8)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec

from autopilot.domain.errors import Conflict, NotFound
from autopilot.domain.ids import TokenId, UserId
from autopilot.domain.permissions import Action, Role, TokenKind
from autopilot.engine.leaving import leave_batch
from autopilot.kit.ids import new_api_token, uuid7
from autopilot.rules_api.auth import PREFIXES
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.wire.workspaces import MemberAdd, MemberPatch, MemberView, NewMemberView
from autopilot.storage import members, tokens
from autopilot.storage.database import Conn
from autopilot.storage.members import Member

_INVITATION_DAYS = 7


async def list_members(call: Call, query: PageQuery) -> Page[MemberView]:
    async with call.database.connection() as conn:
        found = await members.list_members(
            conn, call.caller.workspace_id, before=query.before, limit=query.fetch
        )
    return page_of(found, query, lambda member: member.user_id, _show)


async def add_member(call: Call, body: MemberAdd) -> NewMemberView:
    """Somebody whom nobody here or elsewhere has named before is invited: `token` is their first, shown this once.

    It is bound to this workspace and lives 7 days; give it to them, and they make their own. Who is known has tokens.
    """
    call.caller.require(Action.MEMBER_MANAGE)
    if body.role is Role.OWNER:
        call.caller.require(Action.MEMBER_MAKE_OWNER)
    new_id = UserId(uuid7())
    async with call.database.transaction() as conn:
        user = await members.ensure_user(conn, user_id=new_id, email=body.email, name=body.name)
        await members.insert_member(conn, call.caller.workspace_id, user.id, body.role)
        member = await _find(conn, call, user.id)
        token = await _invite(conn, call, user.id) if user.id == new_id else None
    return NewMemberView(token=token, **msgspec.structs.asdict(member))


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
        now = await members.find_role(conn, caller.workspace_id, caller.person)  # an owner's is held, too
        caller = msgspec.structs.replace(caller, role=now)
        caller.require(Action.MEMBER_MANAGE)
        role = sent(body.role, present)
        if role is not present:
            if Role.OWNER in (role, present):
                caller.require(Action.MEMBER_MAKE_OWNER)
            if present is Role.OWNER and list(roles.values()).count(Role.OWNER) == 1:
                raise Conflict("A workspace keeps at least one owner.", code="last_owner")
            await members.set_role(conn, caller.workspace_id, UserId(user_id), role)
        return _show(await _find(conn, call, user_id))


async def remove_member(call: Call, user_id: UUID) -> None:
    """Send a member away, or leave: the rules they created are paused, their grants and subscriptions go (S5.8).

    Only an owner sends an owner away, and the last one stays.
    """
    leave = partial(
        leave_batch,
        workspace_id=call.caller.workspace_id,
        user_id=UserId(user_id),
        editor=call.caller.person,
    )
    while not await call.database.transact(leave):
        pass


async def _find(conn: Conn, call: Call, user_id: UUID) -> Member:
    member = await members.find_member(conn, call.caller.workspace_id, user_id)
    if member is None:
        raise NotFound
    return member


async def _invite(conn: Conn, call: Call, user_id: UserId) -> str:
    secret = new_api_token(PREFIXES[TokenKind.PERSONAL])
    await tokens.insert_token(
        conn,
        token_id=TokenId(uuid7()),
        kind=TokenKind.PERSONAL,
        name="invitation",
        secret=secret,
        user_id=user_id,
        workspace_id=call.caller.workspace_id,
        created_by=call.caller.person,
        days=_INVITATION_DAYS,
    )
    return secret


def _show(member: Member) -> MemberView:
    return MemberView(**msgspec.structs.asdict(member))


ROUTES = (
    get("/api/members", list_members),
    post("/api/members", add_member, right=Action.MEMBER_MANAGE, refusals=(Code.ALREADY_MEMBER,)),
    get("/api/members/{user_id}", get_member),
    delete("/api/members/{user_id}", remove_member, right=Action.MEMBER_MANAGE, refusals=(Code.LAST_OWNER,)),
    patch("/api/members/{user_id}", update_member, right=Action.MEMBER_MANAGE, refusals=(Code.LAST_OWNER,)),
)
