"""Liveness without the database, readiness with it, loops told when it is back (S15, S1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from autopilot.domain import cron
from autopilot.domain.errors import InfrastructureError
from autopilot.kit.clock import FakeClock
from autopilot.kit.health import Health
from autopilot.kit.loop import Loop
from autopilot.kit.server import port_of, serve


class Database:
    """A check that fails while it is down."""

    def __init__(self) -> None:
        self.up = True

    async def __call__(self) -> None:
        if not self.up:
            raise InfrastructureError("postgresql://me:hunter2@db is away")


class Site:
    def __init__(self, health: Health, url: str, client: ClientSession) -> None:
        self.health = health
        self.database = Database()
        self._url = url
        self._client = client

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._client.get(self._url + path) as response:
            return response.status, await response.json()

    async def text(self, path: str) -> str:
        async with self._client.get(self._url + path) as response:
            return await response.text()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    health = Health("test")
    runner = await serve(health.app(), "127.0.0.1", 0, what="health")
    async with ClientSession() as client:
        site = Site(health, f"http://127.0.0.1:{port_of(runner)}", client)
        health.check("database", site.database)
        yield site
    await runner.cleanup()


async def test_before_the_start_it_lives_and_is_not_ready(site: Site) -> None:
    assert (await site.get("/livez"))[0] == 200
    assert (await site.get("/readyz"))[0] == 503


async def test_it_is_ready_with_its_database_and_says_its_versions(site: Site) -> None:
    """S8.2: that of the zone data too, which decides when schedules fire."""
    site.health.started()
    await site.health.look()
    status, report = await site.get("/readyz")
    assert (status, report["ready"], report["faults"]) == (200, True, {})
    assert report["versions"]["tzdata"] == cron.tzdata_version()


async def test_without_its_database_it_lives_and_is_not_ready(site: Site) -> None:
    site.health.started()
    site.database.up = False
    await site.health.look()
    status, report = await site.get("/readyz")
    assert (status, list(report["faults"])) == (503, ["database"])
    assert "hunter2" not in str(report)
    assert (await site.get("/livez"))[0] == 200


async def test_what_is_degraded_is_said_and_changes_nothing(site: Site) -> None:
    """S1.2: NATS is a help, not a need."""
    site.health.degraded("nats", lambda: "connecting")
    site.health.degraded("other", lambda: None)
    site.health.started()
    await site.health.look()
    status, report = await site.get("/readyz")
    assert (status, report["degraded"]) == (200, {"nats": "connecting"})


async def test_a_stalled_loop_makes_it_unready(site: Site) -> None:
    clock = FakeClock()
    stuck = asyncio.Event()

    async def step() -> None:
        await stuck.wait()

    loop = Loop("dispatch", step, clock=clock, stalled_after_s=60)
    site.health.loop(loop)
    site.health.started()
    await site.health.look()
    assert (await site.get("/readyz"))[1]["faults"] == {"loop dispatch": "stalled"}
    loop.start()
    assert (await site.get("/readyz"))[0] == 200
    await clock.advance(61)
    assert (await site.get("/readyz"))[0] == 503
    stuck.set()
    await loop.stop()


async def test_draining_is_for_good(site: Site) -> None:
    site.health.started()
    site.health.draining()
    await site.health.look()
    assert (await site.get("/readyz"))[1]["faults"] == {"phase": "draining"}


async def test_a_database_that_is_back_ends_the_backoff_of_every_loop(site: Site) -> None:
    """S1.3: within seconds, though the loop would have waited 30."""
    clock = FakeClock()
    ran = asyncio.Event()

    async def step() -> None:
        await site.database()
        ran.set()

    loop = Loop("dispatch", step, clock=clock)
    site.health.loop(loop)
    site.health.started()
    site.database.up = False
    loop.start()
    await clock.advance(300)
    await site.health.look()
    site.database.up = True
    await site.health.look()
    await asyncio.wait_for(ran.wait(), 20)
    await loop.stop()


async def test_watching_looks_every_second() -> None:
    clock = FakeClock()
    health = Health("test", clock=clock)
    looks = 0

    async def check() -> None:
        nonlocal looks
        looks += 1

    health.check("database", check)
    watch = asyncio.create_task(health.watch())
    await clock.advance(10.5)
    watch.cancel()
    assert looks == 11


async def test_metrics_are_served_as_text(site: Site) -> None:
    await site.health.look()
    assert "\nautopilot_ready 0.0" in await site.text("/metrics")
