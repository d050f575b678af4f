"""NATS and the API killed and started again while work goes on and subscribers listen (S1.2, S12.2)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

from autopilot.local.processes import Child
from autopilot.local.services import ServiceProcess

pytestmark = pytest.mark.timeout(240)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


async def test_work_goes_on_and_no_subscriber_misses_or_repeats_an_event(
    postgres_admin_url: str, postgres_template: str
) -> None:
    """NA1, NA2, NA6, NA7, NA11: the followers are the command and the two examples of the documentation, as processes."""
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(database_url=url) as system,
        system.working_runtime("worker") as agent,
        followers(system) as (command, over_http, over_nats),
    ):
        autopilot = await system.make_autopilot(agent)
        token = await system.make_webhook(autopilot)
        await both_doors(system, autopilot, token)
        await eventually(lambda: all_told(system), "events in the stream with NATS up")
        for follower in (over_http, over_nats):
            await eventually(partial(handled_all, system, follower), f"{follower.name} has all")

        await asyncio.to_thread(system.stack.nats.kill)
        over_nats.kill()
        over_http.kill()
        await both_doors(system, autopilot, token)
        for process in system.stack.all_processes():
            ready, why = await eventually(partial(said, process), f"{process.name} answers")
            assert ready, f"{process.name} is degraded, not dead: {why}"
        assert not await all_told(system), "the stream cannot have what it was not there for"
        over_http.start()
        over_nats.start()
        [api] = system.stack.processes["rules-api"]
        await asyncio.to_thread(api.kill)
        await asyncio.to_thread(api.start)
        await asyncio.to_thread(api.wait_ready)

        await asyncio.to_thread(system.stack.nats.start)
        await both_doors(system, autopilot, token)
        await eventually(lambda: all_told(system), "the relay catches up")
        for follower in (over_http, over_nats):
            await eventually(partial(handled_all, system, follower), f"{follower.name} has all")
        assert await eventually(lambda: printed_all(system, command), "the command has told everything")
        command.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(command.wait, 30) == 130


@asynccontextmanager
async def followers(system: System) -> AsyncIterator[tuple[Child, Child, Child]]:
    """`autopilot events --follow`, and the documented subscribers, each with a file of its own."""
    [workspace] = await system.fetch("SELECT id FROM workspace")
    told = {name: value for name, value in os.environ.items() if not name.startswith("AUTOPILOT_")} | {
        "AUTOPILOT_API_URL": system.stack.api_url,
        "AUTOPILOT_TOKEN": system.token,
        "AUTOPILOT_WORKSPACE": system.workspace,
        "NATS_URL": system.stack.nats.url,
        "WORKSPACE_ID": str(workspace["id"]),
    }
    logs = system.stack.logs
    follow = ["-m", "autopilot.cli", "events", "--follow", "--after", "1.0", "--output", "json"]
    made = [Child("follower", [sys.executable, *follow], logs, env=told)]
    for name in ("subscriber", "nats_subscriber"):
        env = told | {"EVENTS_DB": str(logs / f"{name}.db")}
        made.append(Child(name, [sys.executable, str(EXAMPLES / f"{name}.py")], logs, env=env))
    try:
        for child in made:
            child.start()
        yield made[0], made[1], made[2]
    finally:
        for child in made:
            child.kill()


async def said(process: ServiceProcess) -> tuple[bool, str] | None:
    """What a service says of itself, once it has a moment to say it."""
    told = await asyncio.to_thread(process.readiness)
    return None if told == (False, "it does not answer") else told


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


async def event_ids(system: System) -> list[str]:
    return [str(row["event_id"]) for row in await system.fetch("SELECT event_id FROM run_event ORDER BY seq")]


async def handled_all(system: System, follower: Child) -> bool:
    """Whether a subscriber's file has every event; its table cannot have one twice."""
    file = follower.log.with_suffix(".db")
    if not file.exists():
        return False
    with closing(sqlite3.connect(file, timeout=30)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'handled'").fetchall():
            return False  # the file is there before its table
        handled = [event_id for (event_id,) in db.execute("SELECT event_id FROM handled ORDER BY rowid")]
    wanted = await event_ids(system)
    assert set(handled) <= set(wanted)
    return len(wanted) > 0 and set(handled) == set(wanted)


async def printed_all(system: System, command: Child) -> bool:
    """Whether the command printed every event, each once, in order."""
    whole = command.log.read_text().split("\n")[:-1]
    lines = [line for line in whole if line.startswith("{")]
    printed = [json.loads(line)["event_id"] for line in lines]
    assert len(set(printed)) == len(printed)
    return printed == await event_ids(system)
