"""Requests that wait: one poll for all of them, no connection each, and a wake-up at once where there is NATS (S1.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from tests.support.api import Client, running_api
from tests.support.dispatching import fetch
from tests.support.nats import nats_server
from tests.support.work import Machine, make_shop

from autopilot.bus.subjects import wake_runtime
from autopilot.domain.ids import RuntimeId
from autopilot.domain.permissions import TokenKind
from autopilot.storage import runtime_protocol
from autopilot.storage.database import Conn, Database

IDLE = 500


@pytest.fixture
async def crowd() -> AsyncIterator[aiohttp.ClientSession]:
    """A session that may hold any number of requests open."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.mark.timeout(180)
async def test_idle_waiters_ask_the_database_one_question_a_second(
    postgres_url: str, crowd: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 26: polling multiplied. 500 waiting claims, a pool of four connections, and whoever else comes is served."""
    seen: Counter[str] = Counter()
    polled = asyncio.Event()
    find_waiting, connection = runtime_protocol.find_waiting, Database.connection

    async def counted_look(conn: Conn, ids: Collection[RuntimeId]) -> set[RuntimeId]:
        seen["polls"] += len(ids) == IDLE
        polled.set()
        return await find_waiting(conn, ids)

    def counted_connection(self: Database) -> AbstractAsyncContextManager[Conn]:
        seen["connections"] += self.name == "test-api"
        return connection(self)

    monkeypatch.setattr(runtime_protocol, "find_waiting", counted_look)
    async with running_api(postgres_url) as api:
        place = await api.place()
        client = Client(crowd, api.base, await api.token(TokenKind.RUNTIME, place.owner_id, place.id), None)
        rows = await fetch(
            api.database,
            "INSERT INTO runtime (id, workspace_id, name) SELECT gen_random_uuid(), $1, n::text FROM generate_series(1, $2) n RETURNING id",
            *(place.id, IDLE),
        )
        machines = [Machine(client=client, id=str(row["id"])) for row in rows]
        claims: list[asyncio.Task[list[dict[str, Any]]]] = []
        for start in range(
            0, IDLE, 50
        ):  # they come in groups, since each needs a connection for its first look
            group = machines[start : start + 50]
            claims += [asyncio.create_task(machine.claim(wait_s=60)) for machine in group]
            await _have_looked(api.database, [machine.id for machine in group])
        monkeypatch.setattr(Database, "connection", counted_connection)
        seen.clear()
        async with asyncio.timeout(40):
            while seen["polls"] < 3:
                polled.clear()
                await polled.wait()
        assert seen["connections"] <= seen["polls"] + 1  # one poll may have been on its way
        assert (await place.owner("GET", "/api/workspaces")).status == 200
        assert not any(claim.done() for claim in claims)
    assert await asyncio.gather(*claims) == [[]] * IDLE


async def test_a_wake_up_answers_a_waiting_claim_without_the_poll(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_nothing(_conn: Conn, _ids: Collection[RuntimeId]) -> set[RuntimeId]:
        return set()

    monkeypatch.setattr(runtime_protocol, "find_waiting", find_nothing)
    async with nats_server() as server, running_api(postgres_url, server.url) as api:
        async with asyncio.timeout(30):
            await api.deps.bus.wait_connected()
        shop = await make_shop(api)
        await fetch(shop.database, "DELETE FROM runtime_heartbeat")
        claim = asyncio.create_task(shop.machine.claim(wait_s=60))
        await _have_looked(shop.database, [shop.machine.id])
        started = await shop.start()
        api.deps.bus.wake(wake_runtime(UUID(shop.machine.id)))
        async with asyncio.timeout(30):
            assert [task["id"] for task in await claim] == [str(started.task_id)]


async def test_a_claim_whose_client_has_gone_takes_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 14: a claim whose answer is lost; the next claim, not the lease's end, gets the task."""
    found, find_waiting = asyncio.Event(), runtime_protocol.find_waiting

    async def look(conn: Conn, ids: Collection[RuntimeId]) -> set[RuntimeId]:
        waiting = await find_waiting(conn, ids)
        if waiting:
            found.set()
        return waiting

    monkeypatch.setattr(runtime_protocol, "find_waiting", look)
    async with running_api(postgres_url) as api:
        shop = await make_shop(api)
        await fetch(shop.database, "DELETE FROM runtime_heartbeat")
        async with aiohttp.ClientSession() as brief:
            gone = Machine(
                client=Client(brief, api.base, shop.machine.client.token, None), id=shop.machine.id
            )
            claim = asyncio.create_task(gone.claim(wait_s=60))
            await _have_looked(shop.database, [shop.machine.id])
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
        started = await shop.start()
        async with asyncio.timeout(30):
            await found.wait()
            assert [task["id"] for task in await shop.machine.claim(wait_s=20)] == [str(started.task_id)]


async def test_waiting_claims_are_answered_when_the_service_stops(postgres_url: str) -> None:
    """S15: with nothing, so that the runtime asks the next replica."""
    async with aiohttp.ClientSession() as session:
        async with running_api(postgres_url) as api:
            shop = await make_shop(api)
            await fetch(shop.database, "DELETE FROM runtime_heartbeat")
            token = shop.machine.client.token
            machine = Machine(client=Client(session, api.base, token, None), id=shop.machine.id)
            claim = asyncio.create_task(machine.claim(wait_s=60))
            await _have_looked(shop.database, [shop.machine.id])
        async with asyncio.timeout(30):
            assert await claim == []


async def _have_looked(database: Database, runtime_ids: Sequence[str]) -> None:
    """Until these runtimes have claimed once and found nothing: the heartbeat that this implies tells."""
    seen = "SELECT runtime_id FROM runtime_heartbeat WHERE runtime_id = ANY($1::uuid[])"
    async with asyncio.timeout(40):
        while len(await fetch(database, seen, list(runtime_ids))) < len(runtime_ids):
            pass
