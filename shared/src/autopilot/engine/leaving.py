"""When a member leaves: their rules are paused, their grants go, admins are told (S5.8). One batch is one transaction.

The member's row is locked before anything else, so that nobody makes them a rule's creator, publisher or subscriber
meanwhile (HAZARDS 22).
"""

from __future__ import annotations

from typing import Final

from autopilot.domain.errors import Conflict, Forbidden, NotFound
from autopilot.domain.ids import UserId, WorkspaceId
from autopilot.domain.permissions import Action, Role, may
from autopilot.domain.states import PauseReason
from autopilot.engine.publish import hold_rules
from autopilot.engine.system_edits import system_pause
from autopilot.storage import autopilots, members
from autopilot.storage.database import Conn

BATCH: Final = 100


async def leave_batch(conn: Conn, workspace_id: WorkspaceId, user_id: UserId, editor: UserId) -> bool:
    """Pause some of the rules they created, and with the last of them end the membership: True then.

    Whoever dies between two batches has lost nothing: the member is one still, and leaving again goes on. Anybody may
    leave; only owners and admins send others away, only an owner an owner, and the last owner stays.
    """
    roles = await members.lock_to_leave(conn, workspace_id, user_id)
    role = roles.get(user_id)
    if role is None:
        raise NotFound("There is no such member.")
    if user_id != editor:
        _require(await members.find_role(conn, workspace_id, editor), role)
    if role is Role.OWNER and list(roles.values()).count(Role.OWNER) == 1:
        raise Conflict("A workspace keeps at least one owner.", code="last_owner")
    ids = await autopilots.list_active_of(conn, workspace_id, user_id, limit=BATCH + 1)
    is_last = len(ids) <= BATCH
    await hold_rules(conn, workspace_id, ids[:BATCH])  # before the rows below them that go with the member
    if is_last:
        await members.delete_member(conn, workspace_id, user_id)  # first, so that they are told nothing more
    await system_pause(conn, workspace_id, ids[:BATCH], PauseReason.OWNER_LEFT)
    return is_last


def _require(editor: Role | None, leaver: Role) -> None:
    actions = [Action.MEMBER_MANAGE] + ([Action.MEMBER_MAKE_OWNER] if leaver is Role.OWNER else [])
    for action in actions:
        if editor is None or not may(action, editor):
            raise Forbidden(f"You lack the right {action.value} for this.")
