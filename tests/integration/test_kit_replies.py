"""Answers written as one piece: right for every version of HTTP, every way to keep a connection, every peer that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from autopilot.kit.replies import Reply
from autopilot.kit.server import HANDLE, port_of, serve


async def handle(request: web.BaseRequest) -> web.StreamResponse:
    body = b'{"n": %d}' % len(await request.read())
    return Reply(body, status=int(request.path[1:]), headers={"Retry-After": "7"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app[HANDLE] = handle
    runner = await serve(app, "127.0.0.1", 0, what="test", shutdown_timeout=1.0)
    yield port_of(runner)
    await runner.cleanup()


async def talk(port: int, request: bytes) -> bytes:
    """All that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer


BODY = b"Content-Length: 2\r\n\r\nab"


@pytest.mark.parametrize(
    ("request_line", "header", "said"),
    [
        (b"POST /200 HTTP/1.1", b"Connection: close\r\n", b"Connection: close"),
        (b"POST /422 HTTP/1.0", b"", b""),
        (b"HEAD /200 HTTP/1.1", b"Connection: close\r\n", b"Connection: close"),
    ],
)
async def test_an_answer_is_whole_and_the_connection_ends_as_asked(
    port: int, request_line: bytes, header: bytes, said: bytes
) -> None:
    head, _, body = (await talk(port, request_line + b"\r\nHost: x\r\n" + header + BODY)).partition(
        b"\r\n\r\n"
    )
    status, *fields = head.split(b"\r\n")
    assert status.startswith(b"HTTP/1.1 " + request_line[6:9])
    assert {b"Content-Type: application/json", b"Content-Length: 8", b"Retry-After: 7"} < set(fields)
    assert any(field.startswith(b"Date: ") and field.endswith(b" GMT") for field in fields)
    assert [field for field in fields if field.startswith(b"Connection")] == ([said] if said else [])
    assert body == (b"" if request_line.startswith(b"HEAD") else b'{"n": 2}')


async def test_a_connection_is_kept_for_more_requests(port: int) -> None:
    """HTTP/1.1 by itself, HTTP/1.0 where it asks and is told so; pipelined requests are answered in their order."""
    asked = b"POST /200 HTTP/1.1\r\nHost: x\r\n" + BODY + b"POST /202 HTTP/1.1\r\nHost: x\r\n" + BODY
    last = b"POST /401 HTTP/1.0\r\nConnection: keep-alive\r\n" + BODY + b"POST /422 HTTP/1.0\r\n" + BODY
    answers = (await talk(port, asked + last)).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"202", b"401", b"422"]
    assert [b"Connection: keep-alive" in answer for answer in answers] == [False, False, True, False]


async def test_a_peer_that_has_gone_takes_nobody_along(port: int) -> None:
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /200 HTTP/1.1\r\nHost: x\r\n" + BODY)
        writer.transport.abort()
    assert (await talk(port, b"POST /200 HTTP/1.0\r\n" + BODY)).endswith(b'{"n": 2}')
