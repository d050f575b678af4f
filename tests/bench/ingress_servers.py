"""The servers that ingress is measured with: itself, a bare echo, and itself with two plain inserts for each request."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import asyncpg
import msgspec
import uvloop
from aiohttp import web
from tests.bench.ingress_load import SECRET
from tests.bench.support import bench_database
from tests.support.nats import free_port
from tests.support.rules import SECRET_KEY, make_autopilot, make_setting, make_webhook_trigger

from autopilot.ingress import __main__ as service
from autopilot.ingress import app as application
from autopilot.ingress.decide import decide
from autopilot.ingress.intake import Intake, Offer, Taken
from autopilot.ingress.write import Born
from autopilot.storage.database import Database

TABLES = ("webhook_delivery", "webhook_body", "webhook_dedupe", "autopilot_run", "dispatch_queue")


class Server(msgspec.Struct, frozen=True):
    """A server process."""

    port: int
    pid: int

    @property
    def rss_mib(self) -> float:
        """The memory it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Bench(msgspec.Struct, frozen=True):
    """A database with one signed GitHub trigger."""

    url: str
    token: str

    @asynccontextmanager
    async def ingress(self, module: str = "autopilot.ingress", **settings: str) -> AsyncIterator[Server]:
        """An ingress process without limits but those of `settings`."""
        given = {
            "AUTOPILOT_DATABASE_URL": self.url,
            "AUTOPILOT_SECRET_KEYS": SECRET_KEY,
            "AUTOPILOT_INGRESS_PORT": str(free_port()),
            "AUTOPILOT_HEALTH_PORT": str(free_port()),
            "AUTOPILOT_INGRESS_IP_PER_MIN": "0",
            "AUTOPILOT_INGRESS_BAD_PER_MIN": "0",
            "AUTOPILOT_LOG_LEVEL": "warning",
            **settings,
        }
        async with _process(module, port=int(given["AUTOPILOT_INGRESS_PORT"]), environment=given) as server:
            yield server

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[Server]:
        """Ingress that writes each request by itself."""
        async with self.ingress("tests.bench.ingress_servers") as server:
            yield server

    async def count(self, what: str) -> int:
        """One number from the database."""
        conn = await asyncpg.connect(self.url)
        try:
            return int(await conn.fetchval(what))
        finally:
            await conn.close()


@asynccontextmanager
async def make_bench() -> AsyncIterator[Bench]:
    """A fresh database on a durable server of its own."""
    async with bench_database() as url:
        async with Database(url, name="bench") as database:
            setting = await make_setting(database)
            autopilot = await make_autopilot(database, setting)
            trigger = await make_webhook_trigger(
                database, setting, autopilot.id, provider="github", secret=SECRET
            )
        yield Bench(url, trigger.token)


@asynccontextmanager
async def echo() -> AsyncIterator[Server]:
    """The bare server that ours is compared with."""
    port = free_port()
    async with _process("tests.bench.ingress_servers", str(port), port=port, environment={}) as server:
        yield server


@asynccontextmanager
async def _process(*arguments: str, port: int, environment: dict[str, str]) -> AsyncIterator[Server]:
    """A server process, from its first accepted connection to its end."""
    child = subprocess.Popen([sys.executable, "-m", *arguments], env={**os.environ, **environment})
    try:
        await _listening(port)
        yield Server(port, child.pid)
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


async def _serve_echo(port: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=2**20)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


_PLAIN_TABLE = """CREATE TABLE IF NOT EXISTS plain_delivery (id uuid PRIMARY KEY, trigger_id uuid NOT NULL, event text NOT NULL,
    dedupe_key text, headers jsonb NOT NULL, body bytea NOT NULL, received_at timestamptz NOT NULL DEFAULT now(), UNIQUE (trigger_id, dedupe_key))"""
_PLAIN_DELIVERY = "INSERT INTO plain_delivery (id, trigger_id, event, dedupe_key, headers, body) VALUES ($1, $2, $3, $4, $5::text::jsonb, $6)"
_PLAIN_RUN = """INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
    webhook_delivery_id, agent_id, accountable_id, attribution_source) SELECT $1, workspace_id, id, $2, 'webhook', 'pending', execution_mode, version_id,
    version, $3, $4, $5, $6 FROM autopilot WHERE id = $7"""


class PlainIntake(Intake):
    """What one would write first: look up, insert the delivery, insert its run."""

    async def take(self, offer: Offer) -> Taken | None:
        found = offer.found or await self._lookups.find(offer.token_hash)
        if found is None:
            return None
        new = decide(found, offer.received)
        async with self._database.connection() as conn:
            await conn.execute(
                _PLAIN_DELIVERY,
                new.id,
                new.trigger_id,
                new.event,
                new.dedupe_key,
                new.headers.decode(),
                new.body,
            )
            await conn.execute(
                _PLAIN_RUN,
                *(new.run_id, new.trigger_id, new.id, new.agent_id, new.accountable_id),
                *(new.attribution_source, found.target.autopilot_id),
            )
        return Taken(found, new, Born())


async def _make_plain_table(url: str) -> None:
    conn = await asyncpg.connect(url)
    await conn.execute(_PLAIN_TABLE)
    await conn.close()


if __name__ == "__main__":
    if sys.argv[1:]:
        uvloop.run(_serve_echo(int(sys.argv[1])))
    else:
        asyncio.run(_make_plain_table(os.environ["AUTOPILOT_DATABASE_URL"]))
        with patch.object(application, "Intake", PlainIntake):
            sys.exit(service.main())
