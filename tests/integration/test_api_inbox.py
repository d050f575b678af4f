"""The inbox over REST: one's own lines, newest first, marked as read once (S6.8, S7.14)."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.support.api import Api, Place, ids

from autopilot.domain.ids import AutopilotId, RunId, UserId
from autopilot.domain.permissions import TokenKind
from autopilot.kit.ids import uuid7
from autopilot.storage import inbox
from autopilot.storage.inbox import NewItem


@pytest.fixture
async def place(api: Api) -> Place:
    return await api.place()


async def tell(api: Api, place: Place, user_id: UserId, title: str = "“Triage” succeeded again") -> NewItem:
    item = NewItem(
        id=uuid7(),
        user_id=user_id,
        kind="autopilot_recovered",
        title=title,
        autopilot_id=AutopilotId(uuid7()),
        run_id=RunId(uuid7()),
    )
    async with api.database.transaction() as conn:
        await inbox.insert_items(conn, place.id, [item])
    return item


async def test_an_inbox_shows_ones_own_lines_newest_first_in_pages(api: Api, place: Place) -> None:
    """S6.8, S13"""
    mia_id, mia = await api.joined(place, "mia")
    told = [await tell(api, place, mia_id) for _ in range(3)]
    others = await tell(api, place, place.owner_id)
    page = await mia("GET", "/api/inbox?limit=2")
    assert ids(page) == [told[2].id, told[1].id]
    assert ids(await mia("GET", f"/api/inbox?cursor={page.body['next_cursor']}")) == [told[0].id]
    shown = page.body["items"][0]
    assert (shown["kind"], shown["title"], shown["read_at"]) == (told[2].kind, told[2].title, None)
    assert (UUID(shown["autopilot_id"]), UUID(shown["run_id"]), shown["issue_id"]) == (
        told[2].autopilot_id,
        told[2].run_id,
        None,
    )
    assert ids(await place.owner("GET", "/api/inbox")) == [others.id]


async def test_a_line_is_read_once_and_leaves_what_is_unread(api: Api, place: Place) -> None:
    old, new = await tell(api, place, place.owner_id), await tell(api, place, place.owner_id)
    first = await place.owner("POST", f"/api/inbox/{old.id}/read")
    again = await place.owner("POST", f"/api/inbox/{old.id}/read")
    assert first.body == again.body
    assert first.body["read_at"] is not None
    assert ids(await place.owner("GET", "/api/inbox?unread=true")) == [new.id]
    assert ids(await place.owner("GET", "/api/inbox")) == [new.id, old.id]


async def test_an_inbox_is_cleared_up_to_the_newest_line_that_was_seen(api: Api, place: Place) -> None:
    """What comes meanwhile stays unread, and everybody clears their own."""
    mia_id, _ = await api.joined(place, "mia")
    seen = [await tell(api, place, place.owner_id) for _ in range(3)]
    others, late = await tell(api, place, mia_id), await tell(api, place, place.owner_id)
    for read in (3, 0):
        answer = await place.owner("POST", "/api/inbox/read", {"until": str(seen[-1].id)})
        assert (answer.status, answer.body) == (200, {"read": read})
    assert ids(await place.owner("GET", "/api/inbox?unread=true")) == [late.id]
    async with api.database.connection() as conn:
        assert await conn.fetchval("SELECT read_at FROM inbox_item WHERE id = $1", others.id) is None


async def test_nobody_reads_the_line_of_another(api: Api, place: Place) -> None:
    """S6.6, S6.8: not an owner, not another workspace of the same person, not a program."""
    mia_id, mia = await api.joined(place, "mia")
    item = await tell(api, place, mia_id)
    other = await api.place("other")
    path = f"/api/inbox/{item.id}/read"
    for caller in (place.owner, other.owner):
        assert (await caller("POST", path)).problem() == (404, "not_found", None)
        assert ids(await caller("GET", "/api/inbox")) == []
    program = await api.program(place, TokenKind.SERVICE)
    assert (await program("GET", "/api/inbox")).problem()[:2] == (403, "wrong_token_kind")
    assert (await mia("GET", "/api/inbox")).body["items"][0]["read_at"] is None
