"""A client of webhooks that costs little itself: connections that keep a request on the wire, or one in every so often."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
from collections.abc import Iterator
from random import Random
from typing import cast

import msgspec

from autopilot.ingress.receive import PATH

CONNECTIONS = 64
WARM_UP_S = 0.5
SECRET = "the signing secret of the benchmark"
SMALL_BYTES = 8 * 1024
LARGE_BYTES = 250 * 1024


class Measured(msgspec.Struct, frozen=True):
    """Answers a second, and the seconds each took: from when it was due, so that a late server cannot hide behind itself."""

    rate: float
    took_s: list[float]


class Connection(asyncio.Protocol):
    """Sends the next request on each answer; with a pace, when it is due."""

    def __init__(
        self,
        requests: Iterator[bytes],
        expected: tuple[bytes, bytes],
        took_s: list[float],
        pace_s: float | None,
    ) -> None:
        self._requests = requests
        self._status, self._expected = expected
        self._took_s = took_s
        self._pace_s = pace_s
        self._loop = asyncio.get_running_loop()
        self._answer: list[bytes] = []
        self._missing = 0
        self._due = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._stopping = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def begin(self, due: float) -> None:
        """Send the first request then."""
        self._due = due
        self._later = self._loop.call_at(due, self._send)

    def data_received(self, data: bytes) -> None:
        self._answer.append(data)
        if self._missing:
            self._missing -= len(data)
        else:
            head, found, body = b"".join(self._answer).partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            self._missing = length - len(body)
        if not self._missing:
            self._answered()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def stop(self) -> None:
        """Send no more, and close after the answer to what is on the wire."""
        self._stopping = True
        if self._later is not None:
            self._later.cancel()
            self._transport.close()

    def _answered(self) -> None:
        now = self._loop.time()
        if not self._answer[0].startswith(self._status) or self._expected not in self._answer[-1]:
            self.closed.set_exception(RuntimeError(f"unexpected answer: {self._answer[0][:500]!r}"))
            self._transport.abort()
            return
        self._took_s.append(now - self._due)
        self._answer.clear()
        if self._stopping:
            self._transport.close()
            return
        if self._pace_s is None:
            self._due = now
        else:
            self._due += self._pace_s
            if self._due > now:
                self._later = self._loop.call_at(self._due, self._send)
                return
        self._send()

    def _send(self) -> None:
        self._later = None
        self._transport.write(next(self._requests))


async def load(
    port: int,
    requests: Iterator[bytes],
    expected: bytes,
    *,
    seconds: float,
    status: int = 200,
    rate: float | None = None,
) -> Measured:
    """Keep every connection busy, or send `rate` a second in all; what is answered after the warm-up counts."""
    took_s: list[float] = []
    loop = asyncio.get_running_loop()
    line = b"HTTP/1.1 %d " % status
    pace_s = None if rate is None else CONNECTIONS / rate

    def connection() -> Connection:
        return Connection(requests, (line, expected), took_s, pace_s)

    connections = [
        (await loop.create_connection(connection, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)
    ]
    for number, each in enumerate(connections):
        each.begin(loop.time() + (pace_s or 0.0) * number / CONNECTIONS)
    closed = asyncio.gather(*(each.closed for each in connections))
    await asyncio.wait([closed], timeout=WARM_UP_S)
    warm, began = len(took_s), loop.time()
    await asyncio.wait([closed], timeout=seconds)
    measured, lasted_s = took_s[warm:], loop.time() - began
    for each in connections:
        each.stop()
    await closed
    return Measured(len(measured) / lasted_s, measured)


def push(size: int) -> bytes:
    """A GitHub push: like a real one a small one is mostly the addresses of its repository, a large one its commits."""
    api = "https://api.example.test/repos/acme/site"
    random = Random(7)
    owner: dict[str, object] = {"login": "acme", "id": 21031067, "type": "Organization", "site_admin": False}
    repository: dict[str, object] = {
        "id": 186853002,
        "full_name": "acme/site",
        "private": False,
        "owner": owner,
    }
    for number in range(60):
        repository[f"resource_{number}_url"] = f"{api}/resources/{number}" + "{/id}" * (number % 3 == 0)
    commits: list[dict[str, object]] = []
    while True:
        name = f"{random.getrandbits(160):040x}"
        commits.append(
            {
                "id": name,
                "tree_id": f"{random.getrandbits(160):040x}",
                "message": f"Fix page {len(commits)}\n\nIt was broken on screens of {random.randrange(9999)} dots.",
                "timestamp": "2026-03-01T12:00:00+01:00",
                "url": f"https://example.test/acme/site/commit/{name}",
                "author": {"name": "Mia", "email": "mia@example.test", "username": "mia"},
                "modified": [f"pages/{random.getrandbits(32):x}.md", "static/start.css"],
            }
        )
        body = json.dumps(
            {
                "ref": "refs/heads/main",
                "before": "e" * 40,
                "after": name,
                "repository": repository,
                "pusher": {"name": "mia", "email": "mia@example.test"},
                "sender": owner,
                "commits": commits,
                "head_commit": commits[-1],
            }
        ).encode()
        if len(body) >= size:
            return body


def posts(token: str, body: bytes) -> Iterator[bytes]:
    """Signed requests without end, each with a delivery id of its own."""
    signature = hmac.digest(SECRET.encode(), body, "sha256").hex()
    before = (
        f"POST {PATH}{token} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/044aadd\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-GitHub-Event: push\r\n"
        f"X-GitHub-Hook-ID: 292430182\r\nX-Hub-Signature-256: sha256={signature}\r\nX-GitHub-Delivery: "
    ).encode()
    after = b"\r\n\r\n" + body
    run = os.urandom(8).hex().encode()
    return (b"%s%s-%d%s" % (before, run, number, after) for number in itertools.count())


def strangers(body: bytes) -> Iterator[bytes]:
    """Requests without end, each with a token that nobody ever had."""
    before, _, after = next(posts("", body)).partition(b" HTTP/1.1")
    run = os.urandom(16).hex().encode()
    return (b"%sawt_%s%011d HTTP/1.1%s" % (before, run, number, after) for number in itertools.count())
