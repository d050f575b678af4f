"""ingress within the test's own process, or as the process that operators run: on free ports, over a real database."""

from __future__ import annotations

import asyncio
import hmac
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from tests.support.rules import SECRET_KEY

from autopilot.bus.connection import Bus
from autopilot.ingress.app import make_app, make_database, receiving
from autopilot.ingress.config import Config
from autopilot.ingress.receive import PATH
from autopilot.kit.config import Secret
from autopilot.kit.server import port_of, serve


class Answer(msgspec.Struct, frozen=True):
    """What came back: status, decoded JSON and headers."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Ingress(msgspec.Struct, frozen=True):
    """A running ingress and a client of it."""

    base: str
    session: aiohttp.ClientSession

    async def post(
        self, token: str, body: bytes | str = b"{}", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Post a webhook, as application/json unless `headers` say otherwise."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        return await self.request("POST", PATH + token, body, sent)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        async with self.session.request(method, self.base + path, data=body, headers=headers) as response:
            raw = await response.read()
            return Answer(response.status, msgspec.json.decode(raw) if raw else None, response.headers)


def signed(secret: str, body: bytes, **headers: str) -> dict[str, str]:
    """The headers of a GitHub-signed body, with others as X_GitHub_Event="push"."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return named | {"X-Hub-Signature-256": "sha256=" + hmac.digest(secret.encode(), body, "sha256").hex()}


@asynccontextmanager
async def running_ingress(
    postgres_url: str, nats_url: str | None = None, **settings: Any
) -> AsyncIterator[Ingress]:
    """Start the application on a free port of the loopback interface; `settings` are those of its Config."""
    given: dict[str, Any] = {
        "database_url": Secret(postgres_url),
        "secret_keys": (Secret(SECRET_KEY),),
        "ingress_port": 0,
        "ingress_ip_per_min": 0,
        "ingress_bad_per_min": 0,
        **settings,
    }
    config = Config(**given)
    async with (
        make_database(config) as database,
        Bus(nats_url, name="test-ingress") as bus,
        receiving(config, database, bus) as receiver,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        if nats_url is not None:
            await bus.wait_connected()
        runner = await serve(make_app(receiver), "127.0.0.1", 0, what="ingress", shutdown_timeout=1.0)
        try:
            yield Ingress(f"http://127.0.0.1:{port_of(runner)}", session)
        finally:
            await runner.cleanup()


class Running(msgspec.Struct, frozen=True):
    """The process, a client of it, and where its health answers."""

    process: asyncio.subprocess.Process
    ingress: Ingress
    health: str


@asynccontextmanager
async def running_process(postgres_url: str, **environment: str) -> AsyncIterator[Running]:
    """Start `python -m autopilot.ingress`, as talkative as it can be; its stderr is kept for `process.communicate()`."""
    given = {
        "AUTOPILOT_DATABASE_URL": postgres_url,
        "AUTOPILOT_SECRET_KEYS": SECRET_KEY,
        "AUTOPILOT_INGRESS_PORT": "0",
        "AUTOPILOT_HEALTH_PORT": "0",
        "AUTOPILOT_LOG_LEVEL": "debug",
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autopilot.ingress", env=given, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    ports: dict[str, int] = {}
    try:
        while b"service_started" not in (line := await process.stderr.readline()):
            assert line, "it ended before it had started"
            if b'"listening"' in line:
                said = msgspec.json.decode(line)
                ports[said["what"]] = said["port"]
        urls = {what: f"http://127.0.0.1:{port}" for what, port in ports.items()}
        async with aiohttp.ClientSession() as session:
            yield Running(process, Ingress(urls["ingress"], session), urls["health"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
