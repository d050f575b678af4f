"""Agents over the wire."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, RuntimeId, UserId
from autopilot.domain.permissions import Visibility
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.common import Body, Name, SeenVersion


class AgentCreate(Body, frozen=True, kw_only=True):
    """An agent of one's own; without a runtime it cannot work yet."""

    name: Name
    visibility: Visibility = Visibility.PRIVATE
    runtime_id: UUID | None = None


class AgentPatch(Body, frozen=True, kw_only=True):
    """`visibility` is for the agent's owner alone."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    visibility: Visibility | msgspec.UnsetType = msgspec.UNSET
    runtime_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class AgentQuery(PageQuery, frozen=True, kw_only=True):
    """Archived agents are hidden unless asked for."""

    archived: bool = False


class ShareAdd(Body, frozen=True, kw_only=True):
    """A member of the workspace."""

    user_id: UUID


class SharesView(msgspec.Struct, frozen=True, kw_only=True):
    """Who may invoke the agent beside its owner and what its visibility opens."""

    shared_with: list[UserId]


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and what the caller may do with it; `version` counts its edits (If-Match), not its shares."""

    id: AgentId
    name: str
    owner_id: UserId
    visibility: Visibility
    shared_with: list[UserId]
    runtime_id: RuntimeId | None
    created_at: datetime
    archived_at: datetime | None
    version: int
    can_invoke: bool
    can_edit: bool
    can_share: bool
