"""A dispatcher that comes back to its batch after the lease: it decides nothing by what it read so long ago (S4.6, S10.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support import rules
from tests.support.dispatching import admit_one, assert_coherent, drain, fetch, row
from tests.support.rules import Setting

from autopilot.bus.connection import Bus
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.worker import Worker
from autopilot.domain.states import ExecutionMode
from autopilot.kit import points
from autopilot.kit.clock import FakeClock
from autopilot.kit.config import Secret
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def test_a_batch_that_outlived_its_lease_is_given_back_and_judged_anew(
    database: Database, setting: Setting
) -> None:
    """S4.6, S10.1: stopped in the middle, alone, and resumed when the runtime is long gone; the claim is not counted."""
    autopilot = await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    run_id = await admit_one(database, autopilot.id)
    clock = FakeClock()
    config = DispatcherConfig(database_url=Secret("postgresql://unused"))
    stopped = Worker(database, Bus(None, name="test"), config, tell=lambda: None, clock=clock)
    with points.armed("dispatcher.after_claim", "block", on_hit=1) as claimed:
        step = asyncio.create_task(stopped.step())
        await claimed.wait_reached()
        await rules.set_runtime(database, setting.runtime_id, seen_s_ago=100)
        await clock.advance(config.dispatch_lease_s + 1)
        claimed.release()
        assert await step
    assert (await row(database, "autopilot_run", run_id))["status"] == "pending"
    [entry] = await fetch(database, "SELECT claims, lease_until FROM dispatch_queue")
    assert tuple(entry) == (0, None)
    await drain(stopped)
    assert (await row(database, "autopilot_run", run_id))["reason_code"] == "runtime_offline"
    await assert_coherent(database)
