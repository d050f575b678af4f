"""Who may change a rule, judged inside the transaction that changes it (S6.2, S6.3)."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.domain.errors import Forbidden, InvalidValue, NotFound
from autopilot.domain.ids import AutopilotId, UserId, WorkspaceId
from autopilot.domain.permissions import Action, Role, may
from autopilot.domain.rule_fields import MAX_COLLABORATORS
from autopilot.engine.publish import hold_rule
from autopilot.storage import autopilots, collaborators
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.collaborators import Collaborator
from autopilot.storage.database import Conn
from autopilot.storage.rule_targets import hold_members


async def hold_people(
    conn: Conn, workspace_id: WorkspaceId, editor: UserId, others: Iterable[UserId] = (), *, field: str = ""
) -> Role:
    """The editor's role, with the editor and `others` held as members until the transaction ends.

    An editor who is no member is Forbidden; others who are not are an InvalidValue on `field`.
    """
    wanted = set(others)
    roles = await hold_members(conn, workspace_id, {editor, *wanted})
    if editor not in roles:
        raise Forbidden("You are not a member of this workspace.")
    if wanted - roles.keys():
        raise InvalidValue(field, "names a person who is not a member of this workspace")
    return roles[editor]


async def find_rule(conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId) -> Autopilot:
    """A rule as it stands, not locked; NotFound outside the workspace."""
    autopilot = await autopilots.find_autopilot(conn, workspace_id, autopilot_id)
    if autopilot is None:
        raise NotFound("There is no such autopilot.")
    return autopilot


async def require(conn: Conn, autopilot: Autopilot, editor: UserId, role: Role, action: Action) -> None:
    """Forbidden unless the member may act on the rule."""
    allowed = may(
        action,
        role,
        is_creator=autopilot.creator_id == editor,
        is_collaborator=await collaborators.is_collaborator(conn, autopilot.id, editor),
    )
    if not allowed:
        raise Forbidden(f"You lack the right {action.value} for this.")


async def grant(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, editor: UserId, user_id: UserId
) -> list[Collaborator]:
    """Let a member write the rule; the collaborators after it. A repeat changes nothing (S6.3)."""
    seen = await find_rule(conn, workspace_id, autopilot_id)
    role = await hold_people(conn, workspace_id, editor)
    await require(conn, seen, editor, role, Action.AUTOPILOT_MANAGE_ACCESS)
    await hold_people(conn, workspace_id, editor, [user_id], field="user_id")
    held = await hold_rule(conn, workspace_id, autopilot_id)
    await require(conn, held.autopilot, editor, role, Action.AUTOPILOT_MANAGE_ACCESS)
    await collaborators.insert_collaborator(conn, workspace_id, autopilot_id, user_id, granted_by=editor)
    now_granted = (await collaborators.list_collaborators(conn, [autopilot_id]))[autopilot_id]
    if len(now_granted) > MAX_COLLABORATORS:
        raise InvalidValue("user_id", f"an autopilot has at most {MAX_COLLABORATORS} collaborators")
    return now_granted


async def revoke(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, editor: UserId, user_id: UserId
) -> list[Collaborator]:
    """Take the right back; the collaborators after it. A repeat changes nothing (S6.3)."""
    await find_rule(conn, workspace_id, autopilot_id)
    role = await hold_people(conn, workspace_id, editor)
    held = await hold_rule(conn, workspace_id, autopilot_id)
    await require(conn, held.autopilot, editor, role, Action.AUTOPILOT_MANAGE_ACCESS)
    await collaborators.delete_collaborator(conn, autopilot_id, user_id)
    return (await collaborators.list_collaborators(conn, [autopilot_id]))[autopilot_id]
