"""The dispatcher as a process: without NATS it polls, with it it is woken; it dies without loss and stops in order (S1, S15)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import nats
import pytest
from aiohttp import ClientSession
from tests.support import rules
from tests.support.dispatching import admit_one, assert_coherent, drain, execute, fetch, row, worker
from tests.support.nats import nats_server

from autopilot.bus.subjects import wake_dispatch
from autopilot.domain.events import EventKind, RunEvent
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@asynccontextmanager
async def dispatcher(url: str, point: str = "", **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = {"AUTOPILOT_DATABASE_URL": url, "AUTOPILOT_TEST_POINTS": "1", "AUTOPILOT_POINTS": point, **more}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autopilot.dispatcher", env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def told(process: asyncio.subprocess.Process, event: str) -> dict[str, object]:
    """The next log line of this event."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while text := await process.stderr.readline():
            line: dict[str, object] = json.loads(text)
            if line["event"] == event:
                return line
    raise AssertionError(f"it ended without {event}")


async def test_a_kill_between_claim_and_commit_loses_nothing_and_doubles_nothing(
    postgres_url: str, database: Database
) -> None:
    autopilot = await rules.make_autopilot(database, await rules.make_setting(database))
    run_id = await admit_one(database, autopilot.id)
    async with dispatcher(postgres_url, "dispatcher.before_commit=kill") as process:
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    assert (await row(database, "autopilot_run", run_id))["status"] == "pending"
    assert not await fetch(database, "SELECT 1 FROM issue")
    await drain(worker(database))
    assert (await row(database, "autopilot_run", run_id))["status"] == "pending", "its lease still runs"
    await execute(database, "UPDATE dispatch_queue SET lease_until = clock_timestamp() - interval '1 s'")
    await drain(worker(database))
    assert (await row(database, "autopilot_run", run_id))["status"] == "issue_created"
    assert len(await fetch(database, "SELECT 1 FROM issue")) == 1
    await assert_coherent(database)


async def test_a_kill_right_after_the_commit_leaves_a_whole_run(
    postgres_url: str, database: Database
) -> None:
    autopilot = await rules.make_autopilot(database, await rules.make_setting(database))
    run_id = await admit_one(database, autopilot.id)
    async with dispatcher(postgres_url, "dispatcher.after_commit=kill") as process:
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    assert (await row(database, "autopilot_run", run_id))["status"] == "issue_created"
    await drain(worker(database))
    assert len(await fetch(database, "SELECT 1 FROM agent_task")) == 1
    await assert_coherent(database)


async def test_it_says_when_it_is_ready_shows_its_gauges_and_stops_with_0(postgres_url: str) -> None:
    async with dispatcher(postgres_url) as process, ClientSession() as client:
        port = (await told(process, "listening"))["port"]
        await told(process, "service_started")
        async with asyncio.timeout(30):
            while (await client.get(f"http://127.0.0.1:{port}/readyz")).status != 200:
                await asyncio.sleep(0)
            text = ""
            while 'autopilot_oldest_due_seconds{kind="run"}' not in text:
                text = await (await client.get(f"http://127.0.0.1:{port}/metrics")).text()
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_a_wake_up_makes_it_dispatch_at_once_and_the_event_reaches_the_stream(
    postgres_url: str, database: Database
) -> None:
    """S1.2, S12.1: it polls once a minute here, longer than this test may take."""
    autopilot = await rules.make_autopilot(database, await rules.make_setting(database))
    async with (
        nats_server() as server,
        dispatcher(postgres_url, AUTOPILOT_NATS_URL=server.url, AUTOPILOT_POLL_INTERVAL_S="60") as process,
    ):
        await told(process, "bus_connected")
        listener = await nats.connect(server.url)
        try:
            heard = await listener.subscribe("autopilot.events.>")
            run_id = await admit_one(database, autopilot.id)
            await listener.publish(wake_dispatch)
            message = await heard.next_msg(timeout=30)
        finally:
            await listener.close()
        event = msgspec.json.decode(message.data, type=RunEvent)
        assert (event.run_id, event.kind, event.seq) == (run_id, EventKind.STARTED, 1)
        assert message.subject == f"autopilot.events.{event.workspace_id}.run.started"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
