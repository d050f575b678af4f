"""Many live streams, and some that nobody reads: what they cost is bounded (S12.2, HAZARDS 26)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from tests.support.api import Api
from tests.support.dispatching import execute
from tests.support.work import Shop, make_shop

from autopilot.domain.events import RunEvent
from autopilot.domain.ids import WorkspaceId
from autopilot.kit.ids import uuid7
from autopilot.kit.metrics import render
from autopilot.rules_api.routes import events as routes
from autopilot.storage import events
from autopilot.storage.database import Conn, Database

LISTENERS = 2000
GROUP = 100


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def happen(shop: Shop, times: int = 1) -> None:
    await execute(
        shop.database,
        """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
           SELECT gen_random_uuid(), $1, $2, gen_random_uuid(), 'run.done', '{"source": "api", "status": "completed"}'
             FROM generate_series(1, $3)""",
        *(shop.place.id, uuid7(), times),
    )
    async with shop.database.connection() as conn:
        await events.open_heads(conn, times)
    await shop.database.transact(lambda conn: events.sequence(conn, times))


@asynccontextmanager
async def listener(shop: Shop, query: str = "") -> AsyncIterator[asyncio.StreamReader]:
    """A stream on a socket of its own, read up to its first words; it takes little from the kernel."""
    url = urlsplit(shop.owner.base)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (url.hostname, url.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
    try:
        writer.write(
            f"GET /api/events/stream{query} HTTP/1.1\r\nHost: x\r\nX-Workspace: {shop.place.slug}\r\n"
            f"Authorization: Bearer {shop.owner.token}\r\n\r\n".encode()
        )
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"id: ")
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.timeout(180)
async def test_two_thousand_idle_listeners_share_a_poll_and_a_read(
    api: Api, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 26: under 20 queries a second, on one connection at a time; an event is read once for all of them."""
    await happen(shop)
    asked = looked = 0
    polled = asyncio.Event()
    connection, read_last_seqs, read_after = Database.connection, events.read_last_seqs, events.read_after
    reads = 0

    def counted_connection(self: Database) -> AbstractAsyncContextManager[Conn]:
        nonlocal asked
        asked += self.name == "test-api"
        return connection(self)

    async def counted_look(conn: Conn, ids: Collection[WorkspaceId]) -> dict[WorkspaceId, int]:
        nonlocal looked
        looked += 1
        polled.set()
        return await read_last_seqs(conn, ids)

    async def counted_read(conn: Conn, workspace_id: WorkspaceId, seq: int, limit: int) -> list[RunEvent]:
        nonlocal reads
        reads += 1
        return await read_after(conn, workspace_id, seq, limit)

    monkeypatch.setattr(events, "read_last_seqs", counted_look)
    crowd = [listener(shop) for _ in range(LISTENERS)]
    readers = []
    try:
        for start in range(0, LISTENERS, GROUP):
            readers += await asyncio.gather(*(one.__aenter__() for one in crowd[start : start + GROUP]))
        monkeypatch.setattr(Database, "connection", counted_connection)
        monkeypatch.setattr(events, "read_after", counted_read)
        asked = looked = 0
        async with asyncio.timeout(40):
            while looked < 3:
                polled.clear()
                await polled.wait()
        assert asked <= 20 * looked
        await happen(shop)
        async with asyncio.timeout(40):
            await asyncio.gather(*(reader.readuntil(b"id: 1.2\n") for reader in readers))
        assert reads <= 3, "the event itself, and that there is nothing behind it"
    finally:
        await asyncio.gather(*(one.__aexit__(None, None, None) for one in crowd[: len(readers)]))


def times_cut() -> str:
    [line] = [
        line
        for line in render().decode().splitlines()
        if line.startswith("autopilot_event_streams_stuck_total")
    ]
    return line


async def test_a_reader_who_does_not_read_is_cut_and_comes_back_with_its_place(
    api: Api, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it in memory is one piece of the stream, whatever there is to tell; others are not held up."""
    monkeypatch.setattr(routes, "STUCK_S", 0.5)
    await happen(shop, 20_000)
    written = 0
    write = web.StreamResponse.write

    async def counted_write(self: web.StreamResponse, data: bytes) -> None:
        nonlocal written
        await write(self, data)
        written += len(data)

    monkeypatch.setattr(web.StreamResponse, "write", counted_write)
    cut = times_cut()
    async with listener(shop, "?after=1.0") as stuck, listener(shop, "?after=1.19999") as quick:
        async with asyncio.timeout(30):
            await quick.readuntil(b"id: 1.20000\n")
            while times_cut() == cut:
                await asyncio.sleep(0.05)
        assert written < 6_000_000, "no more than the kernel took"
        read = b""
        with suppress(ConnectionError):
            while piece := await stuck.read(65536):
                read += piece
        last = read[: read.rindex(b"\n\n")].rpartition(b"id: 1.")[2].split(b"\n")[0]
    async with listener(shop, f"?after=1.{last.decode()}") as again:
        async with asyncio.timeout(30):
            await again.readuntil(b"id: 1.%d\n" % (int(last) + 1))
