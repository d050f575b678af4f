"""Telling people what the system found or did: a line in the inbox of a rule's creator and of the admins (S7.14)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from autopilot.domain.ids import AutopilotId, RunId, UserId, WorkspaceId
from autopilot.domain.notices import NoticeKind
from autopilot.kit.ids import uuid7
from autopilot.storage import inbox
from autopilot.storage.database import Conn
from autopilot.storage.inbox import NewItem


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell of a rule; `run_id` is the run that it is about, if it is about one."""

    autopilot_id: AutopilotId
    creator_id: UserId
    kind: NoticeKind
    title: str
    run_id: RunId | None = None


async def tell_people(conn: Conn, workspace_id: WorkspaceId, notices: Sequence[Notice]) -> None:
    """Write each notice for its rule's creator, if they are still a member, and for every owner and admin."""
    if not notices:
        return
    watchers = await inbox.list_watchers(conn, workspace_id, [notice.creator_id for notice in notices])
    items = [
        NewItem(
            id=uuid7(),
            user_id=user_id,
            kind=notice.kind,
            title=notice.title,
            autopilot_id=notice.autopilot_id,
            run_id=notice.run_id,
        )
        for notice in notices
        for user_id, runs_it in watchers.items()
        if runs_it or user_id == notice.creator_id
    ]
    await inbox.insert_items(conn, workspace_id, items)
