"""Tokens over the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from autopilot.domain.ids import TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import TokenKind
from autopilot.rules_api.wire.common import Body, Name
from autopilot.storage.tokens import Token


class TokenCreate(Body, frozen=True, kw_only=True):
    """A personal token is for oneself; the others belong to the workspace. Default 90 days, 365 for programs."""

    name: Name
    kind: TokenKind = TokenKind.PERSONAL
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=365)] | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: TokenId
    kind: TokenKind
    name: str
    hint: str
    user_id: UserId | None
    workspace_id: WorkspaceId | None
    created_by: UserId
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """The answer to creating one: the only time that the secret is shown."""

    token: str


def show_token(token: Token) -> TokenView:
    return TokenView(**msgspec.structs.asdict(token))


def show_new_token(token: Token, secret: str) -> NewTokenView:
    return NewTokenView(token=secret, **msgspec.structs.asdict(token))
