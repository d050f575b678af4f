"""NATS killed and started again while work goes on (S1.2, DESIGN: never block on it)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

pytestmark = pytest.mark.timeout(90)


async def test_work_goes_on_without_nats_and_nothing_is_lost_when_it_is_back(
    postgres_admin_url: str, postgres_template: str
) -> None:
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(database_url=url) as system,
        system.working_runtime("worker") as agent,
    ):
        autopilot = await system.make_autopilot(agent)
        token = await system.make_webhook(autopilot)
        await both_doors(system, autopilot, token)
        await eventually(lambda: all_told(system), "events in the stream with NATS up")

        await asyncio.to_thread(system.stack.nats.kill)
        await both_doors(system, autopilot, token)
        for process in system.stack.all_processes():
            ready, why = process.readiness()
            assert ready, f"{process.name} is degraded, not dead: {why}"
        assert not await all_told(system), "the stream cannot have what it was not there for"

        await asyncio.to_thread(system.stack.nats.start)
        await both_doors(system, autopilot, token)
        await eventually(lambda: all_told(system), "the relay catches up")


async def both_doors(system: System, autopilot: str, token: str) -> None:
    """A webhook and a run by hand, each to its end."""
    told = await system.post_webhook(token, {"action": "opened"}, delivery=str(uuid.uuid4()))
    assert told.body["status"] == "accepted"
    by_hand = await system.ok("POST", f"/api/autopilots/{autopilot}/trigger")
    await system.run_in(autopilot, told.body["run_id"], "completed")
    await system.run_in(autopilot, by_hand["id"], "completed")


async def all_told(system: System) -> bool:
    """Whether every event is numbered and confirmed by the stream."""
    [row] = await system.fetch(
        """SELECT NOT EXISTS (SELECT 1 FROM run_event_outbox)
                  AND (SELECT bool_and(relayed_seq = last_seq) FROM event_head) AS told"""
    )
    return bool(row["told"])
