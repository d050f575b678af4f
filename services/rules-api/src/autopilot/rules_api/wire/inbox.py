"""The inbox over the wire: what a person is told (S7.14)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, IssueId, RunId
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.wire.common import Body
from autopilot.storage.inbox import InboxItem


class InboxQuery(PageQuery, frozen=True, kw_only=True):
    """A person's inbox."""

    unread: Annotated[bool, msgspec.Meta(description="Only what has not been read")] = False


class InboxItemView(msgspec.Struct, frozen=True, kw_only=True):
    """One line, with the rule, run or issue that it is about. `read_at` is null until it has been read."""

    id: UUID
    kind: str
    title: str
    autopilot_id: AutopilotId | None
    run_id: RunId | None
    issue_id: IssueId | None
    created_at: datetime
    read_at: datetime | None


class InboxRead(Body, frozen=True, kw_only=True):
    """The newest line that its person has seen: what came after it stays unread."""

    until: UUID


class ReadCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many lines had not been read before."""

    read: int


def show_item(item: InboxItem) -> InboxItemView:
    return InboxItemView(**{name: getattr(item, name) for name in InboxItemView.__struct_fields__})
