"""Workspaces and members over the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from autopilot.domain.ids import UserId, WorkspaceId
from autopilot.domain.permissions import Role
from autopilot.domain.states import AttributionPolicy
from autopilot.rules_api.wire.common import Body, Email, Name, SeenVersion


class WorkspaceCreate(Body, frozen=True, kw_only=True):
    """`issue_prefix` begins the keys of issues, such as AUT-12."""

    slug: Annotated[str, msgspec.Meta(max_length=63, pattern=r"^[a-z0-9](-?[a-z0-9])*$")]
    name: Name
    issue_prefix: Annotated[str, msgspec.Meta(max_length=10, pattern=r"^[A-Z][A-Z0-9]{0,9}$")] = "AUT"


class WorkspacePatch(Body, frozen=True, kw_only=True):
    """What owners and admins may change."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    attribution_policy: AttributionPolicy | msgspec.UnsetType = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class WorkspaceView(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace and what the caller is in it (null for a program)."""

    id: WorkspaceId
    slug: str
    name: str
    issue_prefix: str
    attribution_policy: AttributionPolicy
    created_at: datetime
    version: int
    role: Role | None


class MemberAdd(Body, frozen=True, kw_only=True):
    """A person by address; `name` is used if nobody named them before."""

    email: Email
    name: Name | None = None
    role: Role = Role.MEMBER


class MemberPatch(Body, frozen=True, kw_only=True):
    """Another role."""

    role: Role | msgspec.UnsetType = msgspec.UNSET


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A person's place in the workspace."""

    user_id: UserId
    email: str
    name: str
    role: Role
    created_at: datetime


class NewMemberView(MemberView, frozen=True, kw_only=True):
    """A new member; `token` is the first of a person nobody had named before, and null for others."""

    token: str | None
