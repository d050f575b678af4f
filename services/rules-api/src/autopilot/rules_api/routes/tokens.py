"""API tokens: one's own, and those of the workspace's programs (S6.8, S13.6, S13.8)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import TokenId
from autopilot.domain.permissions import Action, TokenKind
from autopilot.kit.ids import new_api_token, uuid7
from autopilot.rules_api.auth import PREFIXES
from autopilot.rules_api.endpoint import PersonCall, delete, get, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.wire.tokens import (
    NewTokenView,
    TokenCreate,
    TokenView,
    show_new_token,
    show_token,
)
from autopilot.storage import tokens
from autopilot.storage.tokens import Token

_DEFAULT_DAYS = {TokenKind.PERSONAL: 90, TokenKind.SERVICE: 365, TokenKind.RUNTIME: 365}


async def create_token(call: PersonCall, body: TokenCreate) -> NewTokenView:
    """A token made with one that is bound to a workspace is bound to it too: no token widens itself."""
    session = call.session
    personal = body.kind is TokenKind.PERSONAL
    if not personal:
        session.caller.require(Action.WORKSPACE_TOKEN_MANAGE)
    secret = new_api_token(PREFIXES[body.kind])
    async with call.database.transaction() as conn:
        token = await tokens.insert_token(
            conn,
            token_id=TokenId(uuid7()),
            kind=body.kind,
            name=body.name,
            secret=secret,
            user_id=session.person if personal else None,
            workspace_id=session.bound_to if personal else session.caller.workspace_id,
            created_by=session.person,
            days=body.expires_in_days or _DEFAULT_DAYS[body.kind],
        )
    return show_new_token(token, secret)


async def list_tokens(call: PersonCall, query: PageQuery) -> Page[TokenView]:
    """One's own, and for owners and admins those of the workspace's programs."""
    session = call.session
    place = session.place
    async with call.database.connection() as conn:
        found = await tokens.list_tokens(
            conn,
            session.person,
            bound_to=session.bound_to,
            programs_of=place.workspace_id
            if place is not None and place.may(Action.WORKSPACE_TOKEN_MANAGE)
            else None,
            before=query.before,
            limit=query.fetch,
        )
    return page_of(found, query, lambda token: token.id, show_token)


async def revoke_token(call: PersonCall, token_id: UUID) -> None:
    """At once and for ever; revoking again changes nothing."""
    async with call.database.transaction() as conn:
        token = await tokens.find_token(conn, token_id)
        if token is None or not _may_see(call, token):
            raise NotFound
        if token.kind is not TokenKind.PERSONAL:
            call.session.caller.require(Action.WORKSPACE_TOKEN_MANAGE)
        await tokens.revoke_token(conn, token.id)


def _may_see(call: PersonCall, token: Token) -> bool:
    session = call.session
    if token.kind is TokenKind.PERSONAL:
        return token.user_id == session.person and session.bound_to in (None, token.workspace_id)
    return session.place is not None and token.workspace_id == session.place.workspace_id


ROUTES = (
    post("/api/tokens", create_token, right=Action.SELF),
    get("/api/tokens", list_tokens, right=Action.SELF),
    delete("/api/tokens/{token_id}", revoke_token, right=Action.SELF),
)
