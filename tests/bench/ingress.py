"""Webhooks accepted a second (signed, durable, with their runs) over what a bare aiohttp echo of the same body answers."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import asyncpg
import uvloop
from aiohttp import web
from tests.bench.support import bench_database, percentile, print_ratio, rates_in_turn, truncate
from tests.support.nats import free_port
from tests.support.rules import SECRET_KEY, make_autopilot, make_setting, make_webhook_trigger

from autopilot.storage.database import Database

CONNECTIONS = 64
SECONDS = 4.0
WARM_UP_S = 0.5
ROUNDS = 3
SECRET = "the signing secret of the benchmark"
BODY_BYTES = 8 * 1024
TABLES = ("webhook_delivery", "webhook_body", "webhook_dedupe", "autopilot_run", "dispatch_queue")


def push_body() -> bytes:
    """A GitHub push of about 8 KiB: like a real one mostly the addresses of its repository, with a commit or two."""
    api = "https://api.example.test/repos/acme/site"
    owner: dict[str, object] = {"login": "acme", "id": 21031067, "type": "Organization", "site_admin": False}
    repository: dict[str, object] = {
        "id": 186853002,
        "full_name": "acme/site",
        "private": False,
        "owner": owner,
    }
    commit = {
        "id": "f" * 40,
        "message": "Fix the layout of the start page\n\nIt was broken on narrow screens.",
        "timestamp": "2026-03-01T12:00:00+01:00",
        "author": {"name": "Mia", "email": "mia@example.test", "username": "mia"},
        "added": [],
        "removed": [],
        "modified": ["pages/start.md", "static/start.css"],
    }
    push = {
        "ref": "refs/heads/main",
        "before": "e" * 40,
        "after": "f" * 40,
        "repository": repository,
        "pusher": {"name": "mia", "email": "mia@example.test"},
        "sender": owner,
        "commits": [commit],
        "head_commit": commit,
    }
    for number in itertools.count():
        body = json.dumps(push).encode()
        if len(body) >= BODY_BYTES:
            return body
        repository[f"resource_{number}_url"] = f"{api}/resources/{number}" + "{/id}" * (number % 3 == 0)
    raise AssertionError("unreachable: counting never ends")


class Connection(asyncio.Protocol):
    """Keeps one request on the wire, as fast as answers come; `requests` yields each as bytes."""

    def __init__(self, requests: Iterator[bytes], expected: bytes, took_s: list[float]) -> None:
        self._requests = requests
        self._expected = expected
        self._took_s = took_s
        self._answer = b""
        self._now = asyncio.get_running_loop().time
        self._sent = 0.0
        self._stopping = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 200") or self._expected not in body:
            self.closed.set_exception(RuntimeError(f"unexpected answer: {self._answer[:500]!r}"))
            self._transport.abort()
            return
        self._took_s.append(self._now() - self._sent)
        self._answer = b""
        if self._stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def stop(self) -> None:
        """Close after the answer to what is on the wire."""
        self._stopping = True

    def _send(self) -> None:
        self._sent = self._now()
        self._transport.write(next(self._requests))


async def load(port: int, requests: Iterator[bytes], expected: bytes) -> list[float]:
    """The seconds that each answer took, of those that came within SECONDS after the warm-up."""
    took_s: list[float] = []
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: Connection(requests, expected, took_s), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    closed = asyncio.gather(*(connection.closed for connection in connections))
    await asyncio.wait([closed], timeout=WARM_UP_S)
    warm = len(took_s)
    await asyncio.wait([closed], timeout=SECONDS)
    measured = took_s[warm:]
    for connection in connections:
        connection.stop()
    await closed
    return measured


def posts(path: str, body: bytes) -> Iterator[bytes]:
    """Signed requests without end, each with a delivery id of its own."""
    signature = hmac.digest(SECRET.encode(), body, "sha256").hex()
    before = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/044aadd\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-GitHub-Event: push\r\n"
        f"X-GitHub-Hook-ID: 292430182\r\nX-Hub-Signature-256: sha256={signature}\r\nX-GitHub-Delivery: "
    ).encode()
    after = b"\r\n\r\n" + body
    run = os.urandom(8).hex().encode()
    return (b"%s%s-%d%s" % (before, run, number, after) for number in itertools.count())


@asynccontextmanager
async def process(*arguments: str, port: int, **environment: str) -> AsyncIterator[None]:
    """A server process, from its first accepted connection to its end."""
    child = subprocess.Popen([sys.executable, "-m", *arguments], env={**os.environ, **environment})
    try:
        await _listening(port)
        yield
    finally:
        child.terminate()
        await asyncio.to_thread(child.wait)


async def _listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def trigger_path(url: str) -> str:
    """A signed GitHub trigger, and the path of its webhook."""
    async with Database(url, name="bench") as database:
        setting = await make_setting(database)
        autopilot = await make_autopilot(database, setting)
        trigger = await make_webhook_trigger(
            database, setting, autopilot.id, provider="github", secret=SECRET
        )
    return f"/api/webhooks/autopilots/{trigger.token}"


async def measure(url: str, path: str, ingress_port: int, echo_port: int, rounds: int) -> None:
    body = push_body()
    latencies: list[float] = []

    async def ours() -> float:
        await truncate(url, *TABLES)
        took_s = await load(ingress_port, posts(path, body), b'"status":"accepted"')
        latencies.extend(took_s)
        return len(took_s) / SECONDS

    async def theirs() -> float:
        return len(await load(echo_port, posts("/", body), body[-64:])) / SECONDS

    accepted, echoed = await rates_in_turn(ours, theirs, rounds)
    conn = await asyncpg.connect(url)
    kept = await conn.fetchval(
        "SELECT count(*) FROM webhook_delivery d JOIN dispatch_queue q ON q.run_id = d.run_id"
    )
    await conn.close()
    assert kept >= accepted[-1] * SECONDS, f"only {kept} deliveries were kept"
    print_ratio("webhooks accepted", accepted, echoed, "a second", "aiohttp echo")
    print(
        f"  of {len(body)} bytes over {CONNECTIONS} connections, p50 {percentile(latencies, 0.5) * 1000:.1f} ms, p99 {percentile(latencies, 0.99) * 1000:.1f} ms"
    )


async def bench(rounds: int) -> None:
    async with bench_database() as url:
        path = await trigger_path(url)
        ports = free_port(), free_port()
        settings = {
            "AUTOPILOT_DATABASE_URL": url,
            "AUTOPILOT_SECRET_KEYS": SECRET_KEY,
            "AUTOPILOT_INGRESS_PORT": str(ports[0]),
            "AUTOPILOT_INGRESS_IP_PER_MIN": "0",
            "AUTOPILOT_INGRESS_BAD_PER_MIN": "0",
            "AUTOPILOT_LOG_LEVEL": "warning",
        }
        async with (
            process("autopilot.ingress", port=ports[0], **settings),
            process("tests.bench.ingress", "echo", str(ports[1]), port=ports[1]),
        ):
            await measure(url, path, *ports, rounds)


def main(rounds: int = ROUNDS) -> None:
    """Measure and print."""
    uvloop.run(bench(rounds))


async def echo(port: int) -> None:
    """The bare server that ours is compared with."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["echo"]:
        uvloop.run(echo(int(sys.argv[2])))
    else:
        main()
