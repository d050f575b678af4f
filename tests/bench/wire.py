"""HTTP of a client that costs little itself: a connection carries one request at a time, its bytes written beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self, cast
from urllib.parse import urlsplit


def post(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A POST of JSON as it goes over the wire."""
    at = urlsplit(url)
    head = {
        "Host": at.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **headers,
    }
    lines = [f"POST {at.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Wire(asyncio.Protocol):
    """One connection that is kept."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, url: str) -> Self:
        at = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(cls, at.hostname or "", at.port or 80)
        return wire

    async def send(self, request: bytes) -> bytes:
        """The body of the answer, which must be a 200 with its length; one request at a time."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        assert self._answer is not None, "an answer to no question"
        if head.startswith(b"HTTP/1.1 200 "):
            self._answer.set_result(body)
        else:
            self._answer.set_exception(AssertionError(f"{head!r} {body[:500]!r}"))

    def connection_lost(self, _error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("closed before the answer"))
