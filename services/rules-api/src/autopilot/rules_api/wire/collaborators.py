"""Collaborators over the wire (S6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from autopilot.domain.ids import UserId
from autopilot.rules_api.wire.common import Body
from autopilot.storage.collaborators import Collaborator


class CollaboratorAdd(Body, frozen=True, kw_only=True):
    """A member of the workspace who may write the rule."""

    user_id: UUID


class CollaboratorView(msgspec.Struct, frozen=True, kw_only=True):
    """One grant."""

    user_id: UserId
    name: str
    granted_by: UserId
    created_at: datetime


class CollaboratorsView(msgspec.Struct, frozen=True, kw_only=True):
    """Everybody who may write the rule beside its creator and the admins."""

    collaborators: list[CollaboratorView]


def show_collaborators(collaborators: Sequence[Collaborator]) -> list[CollaboratorView]:
    return [CollaboratorView(**msgspec.structs.asdict(grant)) for grant in collaborators]
