"""Collaborators of an autopilot: granted and revoked by its creator or an admin, both idempotent (S6.3)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.ids import AutopilotId, UserId
from autopilot.domain.permissions import Action
from autopilot.engine.rule_access import grant, revoke
from autopilot.rules_api.endpoint import Call, delete, post
from autopilot.rules_api.wire.collaborators import (
    CollaboratorAdd,
    CollaboratorsView,
    show_collaborators,
)
from autopilot.storage.collaborators import Collaborator
from autopilot.storage.database import Conn


async def add_collaborator(call: Call, autopilot_id: UUID, body: CollaboratorAdd) -> CollaboratorsView:
    caller = call.caller

    async def add(conn: Conn) -> list[Collaborator]:
        return await grant(
            conn, caller.workspace_id, AutopilotId(autopilot_id), caller.person, UserId(body.user_id)
        )

    return CollaboratorsView(collaborators=show_collaborators(await call.database.transact(add)))


async def remove_collaborator(call: Call, autopilot_id: UUID, user_id: UUID) -> CollaboratorsView:
    caller = call.caller

    async def remove(conn: Conn) -> list[Collaborator]:
        return await revoke(
            conn, caller.workspace_id, AutopilotId(autopilot_id), caller.person, UserId(user_id)
        )

    return CollaboratorsView(collaborators=show_collaborators(await call.database.transact(remove)))


ROUTES = (
    post(
        "/api/autopilots/{autopilot_id}/collaborators",
        add_collaborator,
        status=200,
        right=Action.AUTOPILOT_MANAGE_ACCESS,
    ),
    delete(
        "/api/autopilots/{autopilot_id}/collaborators/{user_id}",
        remove_collaborator,
        right=Action.AUTOPILOT_MANAGE_ACCESS,
    ),
)
