"""Run events over REST: after a cursor, and live; a gap can always be filled from the database (S12.2, S12.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from tests.support.api import Api, Client, running_api
from tests.support.dispatching import admit_one, drain, execute, worker
from tests.support.work import Shop, make_shop
from yarl import URL

from autopilot.domain.events import RunEvent
from autopilot.domain.ids import WorkspaceId
from autopilot.domain.permissions import TokenKind
from autopilot.rules_api import event_feed
from autopilot.storage import events
from autopilot.storage.database import Conn


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def happen(shop: Shop, runs: int = 1) -> None:
    """So many runs start, and their events are numbered."""
    rule = await shop.rule()
    for _ in range(runs):
        await admit_one(shop.database, rule)
    await drain(worker(shop.database))
    async with shop.database.connection() as conn:
        await events.open_heads(conn, 100)
    async with shop.database.transaction() as conn:
        await events.sequence(conn, 100)


async def test_events_are_read_on_from_a_cursor(shop: Shop) -> None:
    empty = (await shop.owner("GET", "/api/events")).body
    assert empty == {"items": [], "cursor": "1.0", "reset": False}
    await happen(shop, 3)
    first = (await shop.owner("GET", f"/api/events?after={empty['cursor']}&limit=2")).body
    assert [event["seq"] for event in first["items"]] == [1, 2]
    assert {event["kind"] for event in first["items"]} == {"run.started"}
    assert first["items"][0]["workspace_id"] == str(shop.place.id)
    rest = (await shop.owner("GET", f"/api/events?after={first['cursor']}")).body
    assert [event["seq"] for event in rest["items"]] == [3]
    assert (await shop.owner("GET", f"/api/events?after={rest['cursor']}")).body == {
        "items": [],
        "cursor": rest["cursor"],
        "reset": False,
    }


async def test_a_cursor_of_another_history_is_told_to_start_anew(shop: Shop) -> None:
    """HAZARDS 18: relay order and gaps. Another epoch, beyond the head, or below what is kept."""
    await happen(shop, 3)
    for cursor in ("2.1", "1.4"):
        answer = (await shop.owner("GET", f"/api/events?after={cursor}")).body
        assert answer == {"items": [], "cursor": "1.3", "reset": True}
    await execute(shop.database, "DELETE FROM run_event WHERE seq <= 2")
    assert (await shop.owner("GET", "/api/events?after=1.1")).body["reset"] is True
    assert (await shop.owner("GET", "/api/events?after=1.2")).body["reset"] is False
    assert (await shop.owner("GET", "/api/events")).body["items"][0]["seq"] == 3


@pytest.mark.parametrize("cursor", ["x", "1", "1.", "-1.2", "1.2.3", "1.9999999999999999999"])
async def test_a_cursor_that_is_none_is_refused(shop: Shop, cursor: str) -> None:
    assert (await shop.owner("GET", f"/api/events?after={cursor}")).problem() == (400, "malformed", "after")


async def test_another_workspaces_events_are_not_told(api: Api, shop: Shop) -> None:
    """S6.6."""
    await happen(shop)
    other = await api.place("other")
    assert (await other.owner("GET", "/api/events")).body["items"] == []
    service = await api.program(shop.place, TokenKind.SERVICE)
    assert len((await service("GET", "/api/events")).body["items"]) == 1


async def test_a_stream_tells_what_happens_from_now_on(shop: Shop) -> None:
    """S1.2: within a poll, without NATS."""
    await happen(shop)
    async with streaming(shop.owner) as stream:
        await happen(shop)
        message = await stream.next()
        assert (message["id"], message["event"]) == ("1.2", "run.started")
        assert msgspec.json.decode(message["data"])["seq"] == 2


async def test_a_stream_goes_on_where_it_was_left(shop: Shop) -> None:
    """S12.2: `Last-Event-ID` before `after`; a place that is gone is answered with a reset."""
    await happen(shop, 3)
    async with streaming(shop.owner, "?after=1.0", {"Last-Event-ID": "1.1"}) as stream:
        assert [(await stream.next())["id"] for _ in range(2)] == ["1.2", "1.3"]
    async with streaming(shop.owner, "?after=1.2") as stream:
        assert (await stream.next())["id"] == "1.3"
    async with streaming(shop.owner, "?after=7.1") as stream:
        message = await stream.next()
        assert (message["event"], message["id"]) == ("reset", "1.3")


async def test_a_stream_begins_with_the_place_so_that_a_client_can_come_back_before_anything_happened(
    shop: Shop,
) -> None:
    """S12.2: an event between two connections is told by the second."""
    await happen(shop)
    async with streaming(shop.owner) as stream:
        place = await stream.place()
    assert place == "1.1"
    await happen(shop)
    async with streaming(shop.owner, headers={"Last-Event-ID": place}) as stream:
        assert (await stream.next())["id"] == "1.2"


async def test_the_head_of_a_stream_is_an_answer_that_ends(shop: Shop) -> None:
    """Whatever comes next over the same connection is answered."""
    base = URL(shop.owner.base)
    who = f"Host: x\r\nAuthorization: Bearer {shop.owner.token}\r\nX-Workspace: {shop.place.slug}\r\n"
    reader, writer = await asyncio.open_connection(base.host, base.port)
    async with asyncio.timeout(30):
        writer.write(f"HEAD /api/events/stream HTTP/1.1\r\n{who}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HEAD /api/events HTTP/1.1\r\n{who}Connection: close\r\n\r\n".encode())
        rest = await reader.read()
    writer.close()
    assert b"Content-Type: text/event-stream" in head
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_hole_that_opens_while_events_are_read_is_a_reset(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12.2: retention takes the next events between the look at the head and the read."""
    await happen(shop, 3)
    read_after = events.read_after

    async def read_late(conn: Conn, workspace_id: WorkspaceId, seq: int, limit: int) -> list[RunEvent]:
        await conn.execute("DELETE FROM run_event WHERE seq <= 2")
        return await read_after(conn, workspace_id, seq, limit)

    monkeypatch.setattr(events, "read_after", read_late)
    answer = (await shop.owner("GET", "/api/events?after=1.1")).body
    assert answer == {"items": [], "cursor": "1.3", "reset": True}


async def test_a_stream_ends_for_a_revoked_token(
    api: Api, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13: a token is revocable also while it listens; a person who left listens no more."""
    monkeypatch.setattr(event_feed, "RECHECK_S", 0.05)
    service = await api.program(shop.place, TokenKind.SERVICE)
    user_id, member = await api.joined(shop.place, "guest")
    async with streaming(service) as one, streaming(member) as other, streaming(shop.owner) as stays:
        await happen(shop)
        for stream in (one, other, stays):
            assert (await stream.next())["id"] == "1.1"
        await execute(shop.database, "UPDATE api_token SET revoked_at = now() WHERE kind = 'service'")
        await execute(shop.database, "DELETE FROM member WHERE user_id = $1", user_id)
        async with asyncio.timeout(30):
            rest = [await one.rest(), await other.rest()]
        assert "event:" not in "".join(rest)
        await happen(shop)
        assert (await stays.next())["id"] == "1.2"


async def test_streams_end_when_the_service_stops(postgres_url: str) -> None:
    """S15: nobody is kept waiting, and a client comes back with its place."""
    async with aiohttp.ClientSession() as session:
        async with running_api(postgres_url) as api:
            place = await api.place()
            owner = Client(session, api.base, place.owner.token, place.slug)
            opened = streaming(owner)
            stream = await opened.__aenter__()
        async with asyncio.timeout(30):
            assert "event:" not in await stream.rest()
        await opened.__aexit__(None, None, None)


class Stream:
    """Server-sent events as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, str]:
        """The fields of the next message; comments are passed over."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            while line := (await self._response.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "event" in fields:
                    return fields
        raise AssertionError("the stream ended")

    async def place(self) -> str:
        """The cursor that the stream begins with."""
        async with asyncio.timeout(30):
            return (await self._response.content.readline()).decode().removeprefix("id: ").strip()

    async def rest(self) -> str:
        """Everything until the stream ends."""
        return (await self._response.content.read()).decode()


@asynccontextmanager
async def streaming(
    client: Client, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Stream]:
    sent = {
        "Authorization": f"Bearer {client.token}",
        "X-Workspace": client.workspace or "",
        **(headers or {}),
    }
    url = f"{client.base}/api/events/stream{query}"
    async with client.session.get(url, headers=sent) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Stream(response)
