"""What a peer may do with its socket, and for how long: every phase of a connection has an end (S9.2, S9.16)."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.helpers import DEFAULT_CHUNK_SIZE
from structlog.testing import capture_logs

from autopilot.kit import connections, http, metrics
from autopilot.kit.connections import Connection, SocketLimits
from autopilot.kit.server import port_of, serve

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LONG = 32_000_000
MOST_CHUNKS = DEFAULT_CHUNK_SIZE // 16
FAR_S = 60.0


class Peer:
    """The far end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""


class Place:
    """A running server: `connect` to it, `asked` once a request has come, `ended` holds why it cut connections off."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = asyncio.Event()
        self.held: web.Request | None = None
        self.taking = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return Peer(reader, writer)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.set()
        if request.path == "/buffered":
            assert request.transport is not None
            request.transport.set_write_buffer_limits(high=2 * LONG)
        if request.path in {"/long", "/buffered"}:
            return web.Response(body=b"x" * LONG)
        if request.path == "/slowly":
            self.held = request
            await self.taking.wait()
            parts = [part async for part in request.content.iter_chunked(10_000)]
            return web.Response(body=hashlib.sha256(b"".join(parts)).digest())
        try:
            return web.Response(text=f"{request.path}:{len(await request.read())}")
        except web.RequestPayloadError:
            return http.problem_response(http.Problem(400, "invalid_body", "It cannot be read."), "-")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """Why connections were cut off, as it happens."""
    reasons: asyncio.Queue[str] = asyncio.Queue()
    abort = Connection.abort

    def noting(connection: Connection, why: str) -> str:
        reasons.put_nowait(why)
        return abort(connection, why)

    monkeypatch.setattr(Connection, "abort", noting)
    return reasons


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[bytes]:
    """What the server has taken, as it happens: nothing for a new connection, then what it reads."""
    taken: asyncio.Queue[bytes] = asyncio.Queue()
    connection_made, data_received = Connection.connection_made, Connection.data_received

    def making(connection: Connection, transport: asyncio.BaseTransport) -> None:
        connection_made(connection, transport)
        taken.put_nowait(b"")

    def receiving(connection: Connection, data: bytes) -> None:
        data_received(connection, data)
        taken.put_nowait(data)

    monkeypatch.setattr(Connection, "connection_made", making)
    monkeypatch.setattr(Connection, "data_received", receiving)
    return taken


@pytest.fixture
async def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time of the loop on: beside such steps it is nothing how long a slow machine takes."""
    loop = asyncio.get_running_loop()
    real, ahead_s = loop.time, 0.0

    def skip(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
    return skip


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[Place]:
    """A server that echoes the length of a body; limits that are not given are far away."""
    chosen = {"head_s": FAR_S, "body_s": FAR_S, "stall_s": FAR_S, "idle_s": FAR_S, **limits}
    given = SocketLimits(look_every_s=0.02, **chosen)  # type: ignore[arg-type]
    place = Place()
    app = web.Application(client_max_size=1_000_000)
    app.router.add_route("*", "/{path:.*}", place.answer)
    runner = await serve(app, "127.0.0.1", 0, what="test", limits=given, shutdown_timeout=0.5)
    place.port = port_of(runner)
    try:
        yield place
    finally:
        for writer in place.writers:
            writer.transport.abort()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("sent", "why", "limit"),
    [
        (b"", "silent", "head_s"),
        (b"POST /a HTTP/1.1\r\nHost:", "slow_head", "head_s"),
        (b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nxx", "slow_body", "body_s"),
        (
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n",
            "slow_body",
            "body_s",
        ),
    ],
    ids=["nothing", "half a head", "half a body", "half of the chunks"],
)
async def test_a_peer_that_stops_in_the_middle_is_cut_off(
    sent: bytes,
    why: str,
    limit: str,
    ended: asyncio.Queue[str],
    heard: asyncio.Queue[bytes],
    skip: Callable[[float], None],
) -> None:
    async with serving(**{limit: 20.0}) as place:
        peer = await place.connect()
        peer.send(sent)
        while await heard.get() != sent:
            pass
        skip(21.0)
        assert await peer.rest() == b""
        assert await ended.get() == why
        assert f'autopilot_http_connections_closed_total{{why="{why}"}}'.encode() in metrics.render()
        other = await place.connect()
        other.send(GET)
        assert await other.answer() == (200, b"/:0")


async def test_dribbling_bytes_buys_no_time(
    heard: asyncio.Queue[bytes], skip: Callable[[float], None]
) -> None:
    """The time of a head runs from its first byte, also for the second request of a connection."""
    async with serving(head_s=20.0) as place:
        peer = await place.connect()
        peer.send(GET)
        assert (await peer.answer())[0] == 200
        ended = asyncio.create_task(peer.rest())
        for byte in (b"G", b"E", b"T"):
            peer.send(byte)
            while await heard.get() != byte:
                pass
            assert not ended.done()
            skip(8.0)
        assert await ended == b""


async def test_a_connection_may_rest_between_requests_and_not_for_ever(
    skip: Callable[[float], None],
) -> None:
    async with serving(head_s=20.0, idle_s=60.0) as place:
        peer = await place.connect()
        peer.send(GET)
        assert (await peer.answer())[0] == 200
        ended = asyncio.create_task(peer.rest())
        skip(30.0)
        await asyncio.wait([ended], timeout=0.2)
        assert not ended.done()
        skip(61.0)
        assert await ended == b""


@pytest.mark.parametrize("path", ["long", "buffered"])
async def test_a_peer_that_takes_no_answer_is_cut_off(path: str, ended: asyncio.Queue[str]) -> None:
    """While it is written, and once the connection is closed: closing waits for what is still to be written."""
    async with serving(stall_s=0.2) as place:
        peer = await place.connect()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(f"GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert await ended.get() == "stalled"
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await peer.rest()) < LONG


async def test_pipelined_requests_are_answered_in_order() -> None:
    """However many; aiohttp stops reading beyond 32 that wait."""
    async with serving() as place:
        peer = await place.connect()
        peer.send(
            b"".join(
                b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (n, n, b"x" * n)
                for n in range(200)
            )
            + b"GET /end HTTP/1.1\r\nHost:"
        )
        answers = [await peer.answer() for _ in range(200)]
        assert answers == [(200, b"/%d:%d" % (n, n)) for n in range(200)]
        peer.send(b" a\r\n\r\n")
        assert await peer.answer() == (200, b"/end:0")


@pytest.mark.parametrize("pipelined", [32, 40, 100])
@pytest.mark.parametrize(
    "request_", [GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"], ids=["get", "post"]
)
async def test_none_of_many_is_held_back_after_a_body_that_came_late(request_: bytes, pipelined: int) -> None:
    """aiohttp counts the late one among those that wait, for as long as the connection lives."""
    async with serving() as place, asyncio.timeout(20):
        peer = await place.connect()
        peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
        await place.asked.wait()
        peer.send(b"abc")
        await peer.answer()
        peer.send(request_ * pipelined)
        for _ in range(pipelined):
            assert (await peer.answer())[0] == 200


@pytest.mark.parametrize(
    ("head", "size"),
    [(b"X-%d: " + b"v" * 8_000 + b"\r\n", 120), (b"X-%d: v\r\n", 129)],
    ids=["many large headers", "many small headers"],
)
async def test_heads_are_bounded_before_they_are_complete(head: bytes, size: int) -> None:
    """Each header of the first is short enough for the parser, and there are few enough of them."""
    async with serving() as place:
        peer = await place.connect()
        peer.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        answer = asyncio.create_task(peer.answer())
        for number in range(size):
            if answer.done():
                break
            peer.send(head % number)
            await asyncio.wait([answer], timeout=0.002)
        else:
            peer.send(b"\r\n")
        status, body = await answer
        assert status == 431
        assert b'"code":"headers_too_large"' in body
        assert await peer.rest() == b""


async def test_a_body_that_stops_being_http_is_answered_at_once_and_once() -> None:
    async with serving() as place:
        peer = await place.connect()
        peer.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n")
        await place.asked.wait()
        with capture_logs() as lines:
            peer.send(b"hunter2\r\n")
            answer = await peer.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert [line["event"] for line in lines] == ["http_request_broken"]
        assert "hunter2" not in str(lines)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_taken_slowly_is_held_back_and_arrives_whole(chunked: bool) -> None:
    body = b"".join(b"%07d " % number for number in range(LONG // 16))
    if chunked:
        head = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
    else:
        head = b"Content-Length: %d\r\n\r\n" % len(body)
    async with serving() as place, asyncio.timeout(30):
        peer = await place.connect()
        peer.send(b"POST /slowly HTTP/1.1\r\nHost: a\r\n" + head + body + b"\r\n0\r\n\r\n" * chunked)
        await place.asked.wait()
        assert place.held is not None
        transport = place.held.transport
        assert isinstance(transport, asyncio.ReadTransport)
        while transport.is_reading():
            await asyncio.sleep(0)
        assert peer.writer.transport.get_write_buffer_size() > 0
        place.taking.set()
        assert await peer.answer() == (200, hashlib.sha256(body).digest())
        peer.send(GET)
        assert (await peer.answer())[0] == 200


@pytest.mark.parametrize("late", [b"", b"1\r\na\r\n"], ids=["all at once", "the last chunk late"])
async def test_a_body_that_pauses_the_connection_by_its_chunks_holds_nothing_back(
    late: bytes, heard: asyncio.Queue[bytes]
) -> None:
    """The parser heeds such a pause with the next piece of a body, of this request or of the next one."""
    chunks = b"1\r\na\r\n" * MOST_CHUNKS
    async with serving() as place, asyncio.timeout(20):
        peer = await place.connect()
        peer.send(b"POST /slowly HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        await place.asked.wait()
        assert place.held is not None
        while place.held.content.total_bytes < MOST_CHUNKS:
            await heard.get()
        peer.send(b"1\r\na\r\n")
        while place.held.content.total_bytes == MOST_CHUNKS:
            await heard.get()
        peer.send(late + b"0\r\n\r\n")
        place.taking.set()
        size = MOST_CHUNKS + 1 + bool(late)
        assert await peer.answer() == (200, hashlib.sha256(b"a" * size).digest())
        peer.send(b"POST /next HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
        assert await peer.answer() == (200, b"/next:3")


@pytest.mark.parametrize(
    "request_", [GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"], ids=["get", "post"]
)
async def test_a_peer_that_half_closes_gets_its_answer_if_it_has_said_all(request_: bytes) -> None:
    async with serving() as place:
        for sent, answered in ((request_, True), (request_ + request_, True), (request_[:-1], False)):
            peer = await place.connect()
            peer.send(sent)
            peer.writer.write_eof()
            assert (await peer.rest()).startswith(b"HTTP/1.1 200 OK\r\n") == answered


async def test_beyond_their_number_the_longest_waiting_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """First those that never asked anything; who came within the last moment stays."""
    monkeypatch.setattr(connections, "_WAITED_S", FAR_S)
    async with serving(connections=9) as place:
        asked = [await place.connect() for _ in range(7)]
        silent, fresh = await place.connect(), await place.connect()
        for peer in asked:
            peer.send(GET)
            assert (await peer.answer())[0] == 200
        refused = await place.connect()
        assert (await refused.rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        monkeypatch.setattr(connections, "_WAITED_S", 0.0)
        late = await place.connect()
        late.send(GET)
        assert (await late.answer())[0] == 200
        assert await silent.rest() == b""
        for peer in (*asked, fresh):
            peer.send(GET)
            assert (await peer.answer())[0] == 200


async def test_a_flood_of_resets_leaves_nothing_behind() -> None:
    async with serving(connections=50) as place:
        for _ in range(200):
            peer = await place.connect()
            peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx")
            linger = peer.writer.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.writer.transport.abort()
        other = await place.connect()
        other.send(GET)
        assert await other.answer() == (200, b"/:0")
