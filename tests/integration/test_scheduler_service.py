"""The scheduler as its loops and as a process: on time without polling, woken by news, stopped in order (S1.2, S7.9, S15)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support import rules
from tests.support.rules import Setting
from tests.support.scheduling import Scheduler, due_trigger, executions_of, make_due, runs_of

from autopilot.kit import points
from autopilot.kit.loop import Loop
from autopilot.local.ports import free_port
from autopilot.local.services import BY_NAME, ServiceProcess
from autopilot.storage.database import Database

POLL_S = 60
SOONER_THAN_A_POLL_S = 30


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


@pytest.fixture
def process(postgres_url: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    env = {**os.environ, "AUTOPILOT_DATABASE_URL": postgres_url}
    env.pop("AUTOPILOT_NATS_URL", None)
    one = ServiceProcess(BY_NAME["scheduler"], 0, tmp_path, env=env, health_port=free_port(), http_port=None)
    yield one
    one.kill()


@asynccontextmanager
async def sleeping_loop(database: Database) -> AsyncIterator[tuple[Loop, points.Point]]:
    """A schedule loop that looks but once a minute by itself, with the point at which it has committed."""
    loop = Loop("schedule", Scheduler(database).step, poll_s=POLL_S)
    with points.armed("scheduler.schedule.after_commit") as committed:
        loop.start()
        try:
            yield loop, committed
        finally:
            await loop.stop()


async def test_an_occurrence_is_admitted_when_it_is_due_not_at_the_next_poll(
    database: Database, setting: Setting
) -> None:
    """S7.9"""
    trigger_id = await due_trigger(database, setting, late_s=-1.0)
    async with sleeping_loop(database) as (_, committed), asyncio.timeout(SOONER_THAN_A_POLL_S):
        await committed.wait_reached()
    [run] = await runs_of(database, trigger_id)
    assert run["planned_at"] <= run["created_at"]


async def test_news_ends_the_sleep(database: Database, setting: Setting) -> None:
    """S1.2: an edit that brings an occurrence nearer is heard of by a wake-up."""
    trigger_id = await due_trigger(database, setting, late_s=-3600)
    async with sleeping_loop(database) as (loop, committed), asyncio.timeout(SOONER_THAN_A_POLL_S):
        await make_due(database, trigger_id)
        loop.wake()
        await committed.wait_reached()
    assert len(await runs_of(database, trigger_id)) == 1


async def test_the_process_admits_what_is_due_and_stops_in_order(
    database: Database, setting: Setting, process: ServiceProcess
) -> None:
    """S1.2, S15: without NATS."""
    trigger_id = await due_trigger(database, setting, late_s=2)
    process.start()
    await asyncio.to_thread(process.wait_ready)
    async with asyncio.timeout(30):
        while not await runs_of(database, trigger_id):
            await asyncio.sleep(0.05)
    [execution] = await executions_of(database, trigger_id)
    assert execution["state"] == "SUCCESS"
    await asyncio.to_thread(process.stop)
    assert process.exit_code == 0
