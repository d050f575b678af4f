"""Squads over the wire."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import AgentId, SquadId, UserId
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.common import Body, Name, SeenVersion


class SquadCreate(Body, frozen=True, kw_only=True):
    """The leader is an agent that the caller may invoke."""

    name: Name
    leader_id: UUID


class SquadPatch(Body, frozen=True, kw_only=True):
    """What the squad's creator and admins may change."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    leader_id: UUID | msgspec.UnsetType = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class SquadQuery(PageQuery, frozen=True, kw_only=True):
    """Archived squads are hidden unless asked for."""

    archived: bool = False


class SquadView(msgspec.Struct, frozen=True, kw_only=True):
    """A squad and whether the caller may edit it."""

    id: SquadId
    name: str
    leader_id: AgentId | None
    created_by: UserId
    created_at: datetime
    archived_at: datetime | None
    version: int
    can_edit: bool
