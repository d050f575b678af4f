"""A person's edit of an issue, in one transaction with what it means for the issue's run (S11.1, S13.2)."""

from __future__ import annotations

import msgspec

from autopilot.domain.ids import IssueId, WorkspaceId
from autopilot.domain.states import IssueStatus
from autopilot.engine.finish import Moved, NoSuchIssue, hold_issue, move_issue
from autopilot.engine.revisions import check_rev
from autopilot.storage import issues
from autopilot.storage.database import Conn


class IssueEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What to change; None leaves it. `expected_rev` is the revision the editor saw, if they care."""

    title: str | None = None
    status: IssueStatus | None = None
    expected_rev: int | None = None


async def edit_issue(conn: Conn, workspace_id: WorkspaceId, issue_id: IssueId, edit: IssueEdit) -> Moved:
    """Edit under the issue's lock. Raises NoSuchIssue, Conflict `edit_conflict`; an edit that changes nothing is none."""
    links = await hold_issue(conn, workspace_id, issue_id)
    now = await issues.find_issue(conn, workspace_id, issue_id)
    if now is None:
        raise NoSuchIssue
    check_rev(now.rev, edit.expected_rev)
    if edit.status is not None and edit.status is not now.status:
        return await move_issue(conn, links, edit.status, title=edit.title)
    if edit.title is not None and edit.title != now.title:
        await issues.retitle_issue(conn, issue_id, edit.title)
    return Moved()
