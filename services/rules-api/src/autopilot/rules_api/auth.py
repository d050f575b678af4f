"""Who is calling: a bearer token and the workspace it is used in, found with one look-up (S6.6, S6.8, S13)."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

import msgspec
from aiohttp import web

from autopilot.domain.errors import Forbidden, InvalidValue, NotFound
from autopilot.domain.ids import TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import Action, Role, TokenKind, may, tokens_for
from autopilot.kit.http import Problem
from autopilot.storage import tokens
from autopilot.storage.database import Database
from autopilot.storage.tokens import Access

PREFIXES: Final[dict[TokenKind, str]] = {
    TokenKind.PERSONAL: "apt_",
    TokenKind.SERVICE: "aps_",
    TokenKind.RUNTIME: "apr_",
}
WORKSPACE_HEADER: Final = "X-Workspace"

READERS: Final = tokens_for(Action.READ)

_BEARER = re.compile(r"bearer +((?:apt|aps|apr)_[A-Za-z0-9_-]{1,200})", re.IGNORECASE)
_SLUG = re.compile(r"[a-z0-9-]{1,63}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NO_WORKSPACE = "There is no such workspace for you."


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A token used in one workspace. A personal token has `user_id` and `role`; a program's has neither.

    `created_by` is who made the token: for a runtime token the person who registers its runtimes.
    """

    token_id: TokenId
    kind: TokenKind
    user_id: UserId | None
    role: Role | None
    created_by: UserId
    workspace_id: WorkspaceId
    workspace_slug: str

    @property
    def person(self) -> UserId:
        """The person who is calling; Forbidden for the token of a program."""
        if self.user_id is None:
            raise Forbidden("A personal token is needed for this.", code="wrong_token_kind")
        return self.user_id

    def may(self, action: Action, *, is_creator: bool = False, is_collaborator: bool = False) -> bool:
        """Whether the caller has the right; a program's token has none beyond reading."""
        if self.role is None:
            return action is Action.READ
        return may(action, self.role, is_creator=is_creator, is_collaborator=is_collaborator)

    def require(self, action: Action, *, is_creator: bool = False, is_collaborator: bool = False) -> None:
        """Forbidden unless `may`."""
        if not self.may(action, is_creator=is_creator, is_collaborator=is_collaborator):
            raise Forbidden(f"You lack the right {action.value} for this.")


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A live token as it was presented: `place` is the caller in the workspace named or bound, if any.

    `bound_to` is the one workspace that the token is good for; None for a token of all the person's workspaces.
    """

    token_id: TokenId
    user_id: UserId | None
    bound_to: WorkspaceId | None
    place: Caller | None

    @property
    def caller(self) -> Caller:
        """The caller in the workspace; 400 if none is named, 404 if the token's own is closed to its person."""
        if self.place is not None:
            return self.place
        if self.bound_to is not None:
            raise NotFound(_NO_WORKSPACE)
        raise Problem(
            400,
            "workspace_required",
            f"Name the workspace in the header {WORKSPACE_HEADER}, by slug or id.",
            field=WORKSPACE_HEADER,
        )

    @property
    def person(self) -> UserId:
        """The person who is calling; Forbidden for the token of a program."""
        if self.user_id is None:
            raise Forbidden("A personal token is needed for this.", code="wrong_token_kind")
        return self.user_id


async def authenticate(database: Database, request: web.Request, kinds: frozenset[TokenKind]) -> Session:
    """Who is calling: 401 without a live token, 403 for a wrong kind, 404 if the workspace named is not theirs."""
    bearer = _BEARER.fullmatch(request.headers.get("Authorization", "").strip())
    if bearer is None:
        raise _unauthorized("Send an API token as `Authorization: Bearer …`.")
    asked = request.headers.get(WORKSPACE_HEADER, "").strip()
    workspace_id, slug = _named(asked)
    async with database.connection() as conn:
        access = await tokens.find_access(conn, bearer[1], workspace_id=workspace_id, workspace_slug=slug)
    if access is None or not access.live:
        raise _unauthorized("The token is unknown, expired or revoked.")
    if access.kind not in kinds:
        raise Forbidden(f"A {access.kind.value} token may not do this.", code="wrong_token_kind")
    place = _caller_of(access)
    if asked and (place is None or (workspace_id or slug) not in (place.workspace_id, place.workspace_slug)):
        raise NotFound(_NO_WORKSPACE)
    return Session(token_id=access.token_id, user_id=access.user_id, bound_to=access.bound_to, place=place)


def _named(asked: str) -> tuple[UUID | None, str | None]:
    """The header as an id, else as a slug; what is neither names nothing."""
    if is_id(asked):
        return UUID(asked), None
    return None, asked if _SLUG.fullmatch(asked) else None


def is_id(text: str) -> bool:
    """Whether this reads as the id of something."""
    return _UUID.fullmatch(text) is not None


def checked_slug(slug: str) -> str:
    """The slug of a new workspace; InvalidValue if the header would take it for the id of another."""
    if is_id(slug):
        raise InvalidValue("slug", "slug: must not read as an id.")
    return slug


def _caller_of(access: Access) -> Caller | None:
    if access.workspace_id is None or access.workspace_slug is None:
        return None
    if access.kind is TokenKind.PERSONAL and access.role is None:
        return None
    return Caller(
        token_id=access.token_id,
        kind=access.kind,
        user_id=access.user_id,
        role=access.role,
        created_by=access.created_by,
        workspace_id=access.workspace_id,
        workspace_slug=access.workspace_slug,
    )


def _unauthorized(message: str) -> Problem:
    return Problem(401, "unauthorized", message, headers={"WWW-Authenticate": "Bearer"})
