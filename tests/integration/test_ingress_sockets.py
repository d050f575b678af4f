"""What senders do with their sockets, against the real ingress: each webhook is taken whole or not at all, and in bounded time (S9.2, S9.16)."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from tests.support.ingress import Ingress, running_ingress, running_process, signed
from tests.support.rules import WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.ingress import receive
from autopilot.ingress.receive import PATH
from autopilot.kit import points
from autopilot.storage.database import Database

SECRET = "a signing secret of a decent length"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET)


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


Connect = Callable[[Ingress], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections, and cuts them at the end."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(ingress: Ingress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = ingress.base.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split()[0])
    return int(head.split()[1]), await reader.readexactly(length)


def head_of(token: str, body: bytes, **headers: str) -> bytes:
    named = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(body))}
    named |= signed(SECRET, body, **headers)
    lines = [f"POST {PATH}{token} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def stored(database: Database) -> int:
    async with database.connection() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM webhook_delivery")
        return count


async def test_webhooks_in_one_pipeline_are_taken_each_and_answered_in_order(
    ingress: Ingress, connect: Connect, trigger: WebhookTrigger, database: Database
) -> None:
    """Also beyond the 32 that may wait; a broken one in the middle ends neither those before it nor those after."""
    bodies = [b"[%d]" % number for number in range(100)]
    bodies[50] = b"[50"
    reader, writer = await connect(ingress)
    writer.write(b"".join(head_of(trigger.token, body) + body for body in bodies))
    answers = [await answer_of(reader) for _ in bodies]
    assert [status for status, _ in answers] == [200] * 50 + [400] + [200] * 49
    assert await stored(database) == 99
    async with database.connection() as conn:
        found = await conn.fetch("SELECT body FROM webhook_body ORDER BY delivery_id")
    assert [bytes(row["body"]) for row in found] == bodies[:50] + bodies[51:]


async def test_a_sender_that_goes_away_once_all_is_sent_loses_its_answer_and_nothing_else(
    postgres_url: str, connect: Connect, trigger: WebhookTrigger, database: Database
) -> None:
    """A reset in the middle of the write, and a half-close, whose answer still arrives."""
    body = b"{}"
    async with running_ingress(postgres_url) as ingress:
        reader, writer = await connect(ingress)
        with points.armed("ingress.before_write", "block") as point:
            writer.write(head_of(trigger.token, body) + body)
            await point.wait_reached()
            linger = writer.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        reader, writer = await connect(ingress)
        writer.write(head_of(trigger.token, body) + body)
        writer.write_eof()
        status, _ = await answer_of(reader)
        assert (status, await reader.read()) == (200, b"")
    # Written before ingress has ended: of two writers the one that began first may be done last.
    assert await stored(database) == 2


@pytest.mark.parametrize(
    "body",
    [b"2\r\n{}\r\nzz\r\n", b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 200, b"ffffffffffffffffff\r\n"],
    ids=["a broken chunk", "endless trailers", "a chunk beyond all sizes"],
)
async def test_a_body_that_is_not_http_is_refused_at_once_and_stores_nothing(
    ingress: Ingress,
    connect: Connect,
    trigger: WebhookTrigger,
    database: Database,
    body: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it comes with the headers or later; without the look at it, later meant the end of an answer's time."""
    monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 60.0)
    head = head_of(trigger.token, b"{}").replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")
    for parts in ([head + body], [head, body]):
        reader, writer = await connect(ingress)
        async with asyncio.timeout(20):
            with points.armed("ingress.before_lookup") as point:
                writer.write(parts[0])
                if len(parts) > 1:
                    await point.wait_reached()
                    writer.write(parts[1])
                answer = await reader.read()
        assert answer.split()[1] in {b"400", b"431"}
        assert answer.count(b"HTTP/1.") == 1
    assert await stored(database) == 0


async def test_a_sender_that_asks_first_is_told_to_continue_or_why_not(
    ingress: Ingress, connect: Connect, trigger: WebhookTrigger, database: Database
) -> None:
    """curl does so for large bodies; another expectation is refused in our words."""
    body = b"{}"
    for token, told in ((trigger.token, 100), ("awt_" + "x" * 43, 404)):
        reader, writer = await connect(ingress)
        writer.write(head_of(token, body, Expect="100-continue"))
        assert int((await reader.readline()).split()[1]) == told
        if told == 100:
            assert await reader.readline() == b"\r\n"
            writer.write(body)
            assert (await answer_of(reader))[0] == 200
    refused = await ingress.post(trigger.token, body, signed(SECRET, body, Expect="miracles"))
    assert (refused.status, refused.body["code"]) == (417, "expectation_failed")
    assert await stored(database) == 1


async def test_more_headers_than_any_sender_has_are_431(ingress: Ingress, trigger: WebhookTrigger) -> None:
    for number, size in ((140, 1), (100, 170), (20, 1000), (1, 17_000)):
        filler = {f"X-Filler-{index}": "v" * size for index in range(number)}
        answer = await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}") | filler)
        assert (answer.status, answer.body["code"]) == (431, "headers_too_large")


async def test_a_crowd_of_slow_senders_does_not_keep_others_out(
    postgres_url: str, connect: Connect, trigger: WebhookTrigger
) -> None:
    """Those who never finish their headers give way, in a process that may have few connections."""
    async with running_process(postgres_url, AUTOPILOT_INGRESS_CONNECTIONS="20") as running:
        crowd = await asyncio.gather(*(connect(running.ingress) for _ in range(20)))
        for _, writer in crowd:
            writer.write(b"POST / HTTP/1.1\r\nHost:")
        accepted = 0
        async with asyncio.timeout(30):
            while not accepted:
                reader, writer = await connect(running.ingress)
                writer.write(head_of(trigger.token, b"{}") + b"{}")
                line = await reader.readline()
                accepted += line.startswith(b"HTTP/1.1 200 ")
                writer.transport.abort()
        async with running.ingress.session.get(running.health + "/metrics") as response:
            told = re.search(rb'connections_closed_total{why="made_room"} (\d+)', await response.read())
        assert told is not None
        assert 1 <= int(told[1]) < 10, "some of them, not all"
