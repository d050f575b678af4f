"""Projects over the wire."""

from __future__ import annotations

from datetime import datetime

import msgspec

from autopilot.domain.ids import ProjectId, UserId
from autopilot.rules_api.wire.common import Body, Name, SeenVersion


class ProjectCreate(Body, frozen=True, kw_only=True):
    """A project of the workspace."""

    name: Name


class ProjectPatch(Body, frozen=True, kw_only=True):
    """What the project's creator and admins may change."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """A project and whether the caller may edit it."""

    id: ProjectId
    name: str
    created_by: UserId
    created_at: datetime
    version: int
    can_edit: bool
