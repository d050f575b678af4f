"""A person's inbox in a workspace: their own and nobody else's (S6.8)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import NotFound
from autopilot.domain.permissions import Action
from autopilot.rules_api.endpoint import Call, get, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.wire.inbox import InboxItemView, InboxQuery, InboxRead, ReadCount, show_item
from autopilot.storage import inbox


async def list_inbox(call: Call, query: InboxQuery) -> Page[InboxItemView]:
    async with call.database.connection() as conn:
        found = await inbox.list_items(
            conn,
            call.caller.workspace_id,
            call.caller.person,
            before=query.before,
            unread=query.unread,
            limit=query.fetch,
        )
    return page_of(found, query, lambda item: item.id, show_item)


async def read_item(call: Call, item_id: UUID) -> InboxItemView:
    """Note that a line has been read; one that was read before keeps its time."""
    async with call.database.connection() as conn:
        item = await inbox.mark_read(conn, call.caller.workspace_id, call.caller.person, item_id)
    if item is None:
        raise NotFound("There is no such item in your inbox.")
    return show_item(item)


async def read_all(call: Call, body: InboxRead) -> ReadCount:
    """Clear one's inbox up to a line. Lines are kept as long as the runs that they tell of, and then go by themselves."""
    async with call.database.connection() as conn:
        count = await inbox.mark_all_read(conn, call.caller.workspace_id, call.caller.person, body.until)
    return ReadCount(read=count)


ROUTES = (
    get("/api/inbox", list_inbox, right=Action.SELF),
    post("/api/inbox/read", read_all, status=200, right=Action.SELF),
    post("/api/inbox/{item_id}/read", read_item, status=200, right=Action.SELF),
)
