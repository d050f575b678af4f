"""Autopilots over the wire, with what the caller may do to each (S6.4, S13.7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from autopilot.domain.ids import AutopilotId, ProjectId, RuleVersionId, UserId
from autopilot.domain.permissions import Action
from autopilot.domain.rule_fields import MAX_SUBSCRIBERS
from autopilot.domain.states import (
    AssigneeType,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    PauseReason,
    RunStatus,
    TriggerKind,
)
from autopilot.engine.rules import AutopilotEdit, NewAutopilot
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.collaborators import CollaboratorView, show_collaborators
from autopilot.rules_api.wire.common import Body, Runbook, SeenVersion, Template, Title
from autopilot.rules_api.wire.triggers import TriggerView
from autopilot.storage.autopilots import Autopilot, LastRun, ListedAutopilot
from autopilot.storage.collaborators import Collaborator

Subscribers = Annotated[
    list[UUID], msgspec.Meta(max_length=MAX_SUBSCRIBERS, description="Members who are told of its issues")
]


class AutopilotCreate(Body, frozen=True, kw_only=True):
    """A new rule. An assignee may be missing only while it is paused; without a type it is an agent."""

    title: Title
    description: Runbook
    execution_mode: ExecutionMode
    assignee_type: AssigneeType | None = None
    assignee_id: UUID | None = None
    issue_title_template: Template | None = None
    project_id: UUID | None = None
    overlap_policy: OverlapPolicy = OverlapPolicy.ALLOW
    status: AutopilotStatus = AutopilotStatus.ACTIVE
    subscribers: Subscribers = msgspec.field(default_factory=list)

    def as_new(self, autopilot_id: AutopilotId) -> NewAutopilot:
        fields = msgspec.structs.asdict(self)
        if self.assignee_id is not None and self.assignee_type is None:
            fields["assignee_type"] = AssigneeType.AGENT
        return NewAutopilot(id=autopilot_id, **fields)


class AutopilotPatch(Body, frozen=True, kw_only=True):
    """What is not sent stays; `subscribers` replaces the list.

    `creator_id` hands the rule over to another member: for its creator, owners and admins.
    """

    version: SeenVersion | UnsetType = UNSET
    title: Title | UnsetType = UNSET
    description: Runbook | UnsetType = UNSET
    execution_mode: ExecutionMode | UnsetType = UNSET
    assignee_type: AssigneeType | UnsetType | None = UNSET
    assignee_id: UUID | UnsetType | None = UNSET
    issue_title_template: Template | UnsetType | None = UNSET
    project_id: UUID | UnsetType | None = UNSET
    overlap_policy: OverlapPolicy | UnsetType = UNSET
    status: AutopilotStatus | UnsetType = UNSET
    creator_id: UUID | UnsetType = UNSET
    subscribers: Subscribers | UnsetType = UNSET

    def as_edit(self) -> AutopilotEdit:
        fields = msgspec.structs.asdict(self)
        del fields["version"]
        return AutopilotEdit(**fields)


class AutopilotQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of the list; archived rules show only with `status=archived`."""

    status: AutopilotStatus | None = None
    assignee: Annotated[UUID | None, msgspec.Meta(description="An agent's or a squad's id")] = None
    mode: ExecutionMode | None = None


class AutopilotView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. `version` counts every edit (If-Match), `rule_version` what was published."""

    id: AutopilotId
    title: str
    description: str
    execution_mode: ExecutionMode
    issue_title_template: str | None
    assignee_type: AssigneeType | None
    assignee_id: UUID | None
    project_id: ProjectId | None
    overlap_policy: OverlapPolicy
    status: AutopilotStatus
    pause_reason: PauseReason | None
    creator_id: UserId
    rule_owner_id: UserId
    version: int
    rule_version: int
    rule_version_id: RuleVersionId
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    trigger_kinds: list[TriggerKind]
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_run_status: RunStatus | None
    can_write: bool
    can_manage_access: bool
    collaborators: list[CollaboratorView]


class AutopilotDetail(AutopilotView, frozen=True, kw_only=True):
    """One rule, with its live triggers and who is told about its issues."""

    triggers: list[TriggerView]
    subscribers: list[UserId]


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do to one rule."""

    can_write: bool
    can_manage_access: bool


def rights_of(autopilot: Autopilot, collaborators: Sequence[Collaborator], caller: Caller) -> Rights:
    is_creator = autopilot.creator_id == caller.user_id
    is_collaborator = any(grant.user_id == caller.user_id for grant in collaborators)
    return Rights(
        can_write=caller.may(Action.AUTOPILOT_WRITE, is_creator=is_creator, is_collaborator=is_collaborator),
        can_manage_access=caller.may(Action.AUTOPILOT_MANAGE_ACCESS, is_creator=is_creator),
    )


def show_listed(
    autopilot: ListedAutopilot, collaborators: Sequence[Collaborator], caller: Caller
) -> AutopilotView:
    rights = rights_of(autopilot, collaborators, caller)
    return AutopilotView(
        **_common(autopilot),
        trigger_kinds=autopilot.trigger_kinds or [],
        next_run_at=autopilot.next_run_at,
        last_run_at=autopilot.last_run_at,
        last_run_status=autopilot.last_run_status,
        can_write=rights.can_write,
        can_manage_access=rights.can_manage_access,
        collaborators=show_collaborators(collaborators),
    )


def show_detail(
    autopilot: Autopilot,
    rights: Rights,
    *,
    triggers: Sequence[TriggerView],
    collaborators: Sequence[Collaborator],
    subscribers: Sequence[UserId],
    last_run: LastRun | None,
) -> AutopilotDetail:
    return AutopilotDetail(
        **_common(autopilot),
        trigger_kinds=sorted({trigger.kind for trigger in triggers}),
        next_run_at=min((t.next_run_at for t in triggers if t.next_run_at is not None), default=None),
        last_run_at=last_run.created_at if last_run is not None else None,
        last_run_status=last_run.status if last_run is not None else None,
        can_write=rights.can_write,
        can_manage_access=rights.can_manage_access,
        collaborators=show_collaborators(collaborators),
        triggers=list(triggers),
        subscribers=list(subscribers),
    )


def _common(autopilot: Autopilot) -> dict[str, Any]:
    return {
        "id": autopilot.id,
        "title": autopilot.title,
        "description": autopilot.description,
        "execution_mode": autopilot.execution_mode,
        "issue_title_template": autopilot.issue_title_template,
        "assignee_type": autopilot.assignee_type,
        "assignee_id": autopilot.assignee_id,
        "project_id": autopilot.project_id,
        "overlap_policy": autopilot.overlap_policy,
        "status": autopilot.status,
        "pause_reason": autopilot.pause_reason,
        "creator_id": autopilot.creator_id,
        "rule_owner_id": autopilot.rule_owner_id,
        "version": autopilot.rev,
        "rule_version": autopilot.version,
        "rule_version_id": autopilot.version_id,
        "created_at": autopilot.created_at,
        "updated_at": autopilot.updated_at,
        "archived_at": autopilot.archived_at,
    }
