"""Use cases on autopilots: create, edit, archive; each is one transaction of its caller (S2.7, S13.2, S13.5).

Locks follow the one order: members, the assignee and the project first, then the rule, then its triggers; whatever was
read before a lock is judged again under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from autopilot.domain.errors import Conflict, InvalidValue
from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    ProjectId,
    RuleVersionId,
    SquadId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.permissions import Action
from autopilot.domain.rule_fields import MAX_SUBSCRIBERS, checked_runbook, checked_template, checked_title
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import (
    AssigneeType,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
)
from autopilot.engine.assignees import (
    HeldAssignee,
    check_assignee,
    check_hand_over,
    hold_assignee,
    needs_check,
)
from autopilot.engine.publish import HeldRule, hold_rule, save_rule
from autopilot.engine.revisions import check_rev
from autopilot.engine.rule_access import find_rule, hold_people, require
from autopilot.storage import autopilots, facts
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn
from autopilot.storage.errors import Contention
from autopilot.storage.rule_targets import hold_members, hold_project


class NewAutopilot(msgspec.Struct, frozen=True, kw_only=True):
    """A rule to be made; its creator is the editor. `id` is made once by the caller."""

    id: AutopilotId
    title: str
    description: str
    execution_mode: ExecutionMode
    assignee_type: AssigneeType | None = None
    assignee_id: AgentId | SquadId | None = None
    issue_title_template: str | None = None
    project_id: ProjectId | None = None
    overlap_policy: OverlapPolicy = OverlapPolicy.ALLOW
    status: AutopilotStatus = AutopilotStatus.ACTIVE
    subscribers: Sequence[UserId] = ()


class AutopilotEdit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an edit says; what it leaves unset stays as it is. `subscribers` replaces the list (S13.7)."""

    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    execution_mode: ExecutionMode | UnsetType = UNSET
    assignee_type: AssigneeType | UnsetType | None = UNSET
    assignee_id: AgentId | SquadId | UnsetType | None = UNSET
    issue_title_template: str | UnsetType | None = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    overlap_policy: OverlapPolicy | UnsetType = UNSET
    status: AutopilotStatus | UnsetType = UNSET
    creator_id: UserId | UnsetType = UNSET
    subscribers: Sequence[UserId] | UnsetType = UNSET


async def create_autopilot(
    conn: Conn, workspace_id: WorkspaceId, editor: UserId, new: NewAutopilot
) -> Autopilot:
    """Make a rule and its first version; every member may (S6.1)."""
    subscribers = _checked_subscribers(new.subscribers)
    await hold_people(conn, workspace_id, editor, subscribers, field="subscribers")
    autopilot = _new_row(workspace_id, editor, new, await facts.database_now(conn))
    assignee = await hold_assignee(conn, workspace_id, autopilot, editor)
    check_assignee(None, autopilot, assignee, editor)
    await _hold_project(conn, autopilot)
    saved = await save_rule(conn, None, HeldRule(autopilot=autopilot), editor)
    await autopilots.replace_subscribers(conn, workspace_id, autopilot.id, subscribers)
    return saved.autopilot


async def update_autopilot(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    editor: UserId,
    edit: AutopilotEdit,
    *,
    expected_rev: int | None = None,
) -> Autopilot:
    """Apply an edit; Conflict `edit_conflict` if `expected_rev` is given and another edit came first (S13.2)."""
    seen = await find_rule(conn, workspace_id, autopilot_id)
    role = await hold_people(conn, workspace_id, editor)
    await require(conn, seen, editor, role, Action.AUTOPILOT_WRITE)
    if isinstance(edit.subscribers, UnsetType):
        subscribers: list[UserId] | None = None
    else:
        subscribers = _checked_subscribers(edit.subscribers)
        await hold_people(conn, workspace_id, editor, subscribers, field="subscribers")
    now = await facts.database_now(conn)
    foreseen = _edited(seen, edit, now)
    if foreseen.creator_id != seen.creator_id:
        await require(conn, seen, editor, role, Action.AUTOPILOT_HAND_OVER)
    await _hold_creator(conn, seen, foreseen)
    assignee: HeldAssignee | None = None
    if needs_check(seen, foreseen) or foreseen.creator_id != seen.creator_id:
        assignee = await hold_assignee(conn, workspace_id, foreseen, editor)
    if not isinstance(edit.project_id, UnsetType):
        await _hold_project(conn, foreseen)

    held = await hold_rule(conn, workspace_id, autopilot_id)
    await require(conn, held.autopilot, editor, role, Action.AUTOPILOT_WRITE)
    check_rev(held.autopilot.rev, expected_rev)
    after = _edited(held.autopilot, edit, now)
    if after.creator_id != held.autopilot.creator_id:
        await require(conn, held.autopilot, editor, role, Action.AUTOPILOT_HAND_OVER)
    if _needs_creator(held.autopilot, after) and (
        after.creator_id != foreseen.creator_id or not _needs_creator(seen, foreseen)
    ):
        raise Contention("the autopilot's creator changed meanwhile")
    check_assignee(held.autopilot, after, assignee, editor)
    check_hand_over(held.autopilot, after, assignee, editor)
    _check_overlap(held, after)
    saved = await _save(conn, held, after, editor, subscribers)
    return saved.autopilot


async def archive_autopilot(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    editor: UserId,
    *,
    expected_rev: int | None = None,
) -> Autopilot:
    """Retire a rule, keeping everything it made; a repeat publishes nothing (S2.7)."""
    edit = AutopilotEdit(status=AutopilotStatus.ARCHIVED)
    return await update_autopilot(conn, workspace_id, autopilot_id, editor, edit, expected_rev=expected_rev)


async def _save(
    conn: Conn, held: HeldRule, after: Autopilot, editor: UserId, subscribers: list[UserId] | None
) -> HeldRule:
    if subscribers is not None:
        if subscribers == await autopilots.list_subscribers(conn, after.id):
            subscribers = None
        else:
            await autopilots.replace_subscribers(conn, after.workspace_id, after.id, subscribers)
    if subscribers is not None and after == held.autopilot:
        # The list is not on the row, yet changing it is an edit: others must notice (S13.2).
        bumped = msgspec.structs.replace(after, rev=after.rev + 1)
        await autopilots.update_autopilot(conn, bumped)
        return msgspec.structs.replace(held, autopilot=bumped)
    return await save_rule(conn, held, msgspec.structs.replace(held, autopilot=after), editor)


def _new_row(workspace_id: WorkspaceId, creator: UserId, new: NewAutopilot, now: datetime) -> Autopilot:
    if new.status is AutopilotStatus.ARCHIVED:
        raise InvalidValue("status", "a new autopilot is active or paused")
    return Autopilot(
        id=new.id,
        workspace_id=workspace_id,
        title=checked_title(new.title),
        description=checked_runbook(new.description),
        execution_mode=new.execution_mode,
        issue_title_template=checked_template(new.issue_title_template),
        project_id=new.project_id,
        overlap_policy=new.overlap_policy,
        status=new.status,
        pause_reason=None,
        creator_id=creator,
        rule_owner_id=creator,
        version=0,
        version_id=RuleVersionId(new.id),
        rev=1,
        resumed_at=now,
        created_at=now,
        updated_at=now,
        archived_at=None,
        **_assignee(new.assignee_type, new.assignee_id),
    )


def _edited(before: Autopilot, edit: AutopilotEdit, now: datetime) -> Autopilot:
    changes: dict[str, Any] = {}
    if not isinstance(edit.title, UnsetType):
        changes["title"] = checked_title(edit.title)
    if not isinstance(edit.description, UnsetType):
        changes["description"] = checked_runbook(edit.description)
    if not isinstance(edit.issue_title_template, UnsetType):
        changes["issue_title_template"] = checked_template(edit.issue_title_template)
    for field in ("execution_mode", "project_id", "overlap_policy", "creator_id"):
        value = getattr(edit, field)
        if value is not UNSET:
            changes[field] = value
    changes |= _edited_assignee(before, edit)
    if not isinstance(edit.status, UnsetType) and edit.status is not before.status:
        changes |= _status_changes(before, edit.status, now)
    return msgspec.structs.replace(before, **changes)


def _edited_assignee(before: Autopilot, edit: AutopilotEdit) -> dict[str, Any]:
    if isinstance(edit.assignee_id, UnsetType):
        if isinstance(edit.assignee_type, UnsetType) or edit.assignee_type is before.assignee_type:
            return {}
        if edit.assignee_type is not None:
            raise InvalidValue("assignee_id", "is needed with another assignee_type")
        return _assignee(None, None)
    if not isinstance(edit.assignee_type, UnsetType):
        return _assignee(edit.assignee_type, edit.assignee_id)
    if edit.assignee_id is None:
        return _assignee(None, None)
    return _assignee(before.assignee_type or AssigneeType.AGENT, edit.assignee_id)


def _assignee(kind: AssigneeType | None, assignee_id: AgentId | SquadId | None) -> dict[str, Any]:
    if (kind is None) != (assignee_id is None):
        raise InvalidValue("assignee_id", "needs an assignee_type, and an assignee_type needs it")
    return {
        "assignee_type": kind,
        "agent_id": assignee_id if kind is AssigneeType.AGENT else None,
        "squad_id": assignee_id if kind is AssigneeType.SQUAD else None,
    }


def _status_changes(before: Autopilot, status: AutopilotStatus, now: datetime) -> dict[str, Any]:
    if before.status is AutopilotStatus.ARCHIVED and status is AutopilotStatus.PAUSED:
        raise InvalidValue("status", "an archived autopilot can only be activated")
    changes: dict[str, Any] = {
        "status": status,
        "pause_reason": None,
        "archived_at": now if status is AutopilotStatus.ARCHIVED else None,
    }
    if status is AutopilotStatus.ACTIVE:
        changes["resumed_at"] = now
    return changes


def _checked_subscribers(users: Sequence[UserId]) -> list[UserId]:
    unique = sorted(set(users))
    if len(unique) > MAX_SUBSCRIBERS:
        raise InvalidValue("subscribers", f"at most {MAX_SUBSCRIBERS} subscribers")
    return unique


def _check_overlap(held: HeldRule, after: Autopilot) -> None:
    """S7.11 from the other side: the policy must not contradict a trigger that is there."""
    if after.overlap_policy in (OverlapPolicy.ALLOW, held.autopilot.overlap_policy):
        return
    if any(trigger.catch_up is CatchUp.ALL for trigger in held.triggers):
        raise InvalidValue(
            "overlap_policy", "contradicts a trigger whose catch-up is 'all', which drops nothing"
        )


async def _hold_creator(conn: Conn, before: Autopilot, after: Autopilot) -> None:
    """Whoever a rule is handed to, or is to run for again, is a member until the transaction ends (S5.8)."""
    if not _needs_creator(before, after) or await hold_members(conn, after.workspace_id, [after.creator_id]):
        return
    if before.creator_id != after.creator_id:
        raise InvalidValue("creator_id", "names a person who is not a member of this workspace")
    raise Conflict("Its creator has left: hand it over first, with `creator_id`.", code="owner_left")


def _needs_creator(before: Autopilot, after: Autopilot) -> bool:
    activates = before.status is not after.status and after.status is AutopilotStatus.ACTIVE
    return activates or before.creator_id != after.creator_id


async def _hold_project(conn: Conn, after: Autopilot) -> None:
    if after.project_id is not None and not await hold_project(conn, after.workspace_id, after.project_id):
        raise InvalidValue("project_id", "names no project of this workspace")
