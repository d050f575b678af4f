"""Issues and their comments over the wire (S11.6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, IssueId, ProjectId, RunId
from autopilot.domain.states import IssueStatus
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.common import Body, SeenVersion
from autopilot.storage.issues import Comment, Issue

MAX_COMMENT_BYTES = 64 * 1024

IssueTitle = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\S")]


class IssueQuery(PageQuery, frozen=True, kw_only=True):
    """A list of issues."""

    status: IssueStatus | None = None
    autopilot: Annotated[UUID | None, msgspec.Meta(description="Only those that this rule made")] = None


class IssuePatch(Body, frozen=True, kw_only=True):
    """An edit by a person."""

    title: IssueTitle | msgspec.UnsetType = msgspec.UNSET
    status: IssueStatus | msgspec.UnsetType = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class CommentCreate(Body, frozen=True, kw_only=True):
    """What a person says, at most 64 KiB of UTF-8."""

    body: Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]


class IssueView(msgspec.Struct, frozen=True, kw_only=True):
    """An issue; `key` is its number with the workspace's prefix."""

    id: IssueId
    number: int
    key: str
    title: str
    body: str
    status: IssueStatus
    assignee_type: str | None
    assignee_id: UUID | None
    creator_type: str
    creator_id: UUID
    project_id: ProjectId | None
    origin_autopilot_id: AutopilotId | None
    origin_run_id: RunId | None
    version: int
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None


class CommentView(msgspec.Struct, frozen=True, kw_only=True):
    """A comment by an agent, a person or the system."""

    id: UUID
    author_type: str
    author_id: UUID
    body: str
    created_at: datetime


def show_issue(issue: Issue) -> IssueView:
    names = [name for name in IssueView.__struct_fields__ if name != "version"]
    return IssueView(version=issue.rev, **{name: getattr(issue, name) for name in names})


def show_comment(comment: Comment) -> CommentView:
    return CommentView(**{name: getattr(comment, name) for name in CommentView.__struct_fields__})
