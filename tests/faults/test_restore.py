"""A database restored from a dump: runs go on and none is made twice, subscribers are told that history changed (S12.2)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import aiohttp
import msgspec
import pytest
from tests.support.api import Client, running_api
from tests.support.dispatching import admit, assert_coherent, drain, execute, fetch, firing, worker
from tests.support.postgres import cloned_database
from tests.support.rules import Setting, make_autopilot, set_runtime
from tests.support.work import make_shop

from autopilot.bus.events import PubAck
from autopilot.dispatcher.relay import Relay, Sequencer
from autopilot.domain.events import RunEvent
from autopilot.domain.ids import AutopilotId, LeaseToken
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import random_token
from autopilot.local.pg_programs import pg_programs
from autopilot.storage import pending
from autopilot.storage.database import Database

END_LEASES = (
    "UPDATE dispatch_queue SET lease_until = clock_timestamp() - interval '1 s' WHERE lease_token IS NOT NULL"
)

pytestmark = pytest.mark.timeout(180)


class Sink:
    """A stream that remembers."""

    def __init__(self) -> None:
        self.stored: list[RunEvent] = []

    async def ensure_stream(self) -> None:
        pass

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        self.stored.append(msgspec.json.decode(payload, type=RunEvent))
        return PubAck(stream_seq=len(self.stored), duplicate=False)


async def run(program: str, *arguments: str) -> None:
    command = [str(pg_programs(None).folder / program), *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def restored(admin: str, dump: Path) -> AsyncIterator[str]:
    """A new database with what a dump holds."""
    async with cloned_database(admin, None) as url:
        await run("pg_restore", "--dbname", url, "--no-owner", "--exit-on-error", str(dump))
        yield url


async def sequence(database: Database) -> None:
    while await Sequencer(database, batch=100, tell=lambda: None).step():
        pass


async def relay(database: Database) -> list[RunEvent]:
    """What a relay publishes until nothing is left."""
    sink = Sink()
    one = Relay(database, sink, connected=lambda: True, batch=100)
    while await one.step():
        pass
    return sink.stored


async def dispatch(database: Database, setting: Setting) -> None:
    await set_runtime(database, setting.runtime_id)
    await drain(worker(database))
    await sequence(database)


async def more_runs(database: Database, rules: list[AutopilotId], count: int) -> None:
    await admit(database, [firing(rules[n % len(rules)]) for n in range(count)])


async def page(url: str, owner: Client, cursor: str) -> tuple[bool, str, list[int]]:
    """What a subscriber with this cursor is told: reset, where it is then, and the numbers."""
    async with running_api(url) as api, aiohttp.ClientSession() as session:
        client = Client(session, api.base, owner.token, owner.workspace)
        answer = await client("GET", f"/api/events?after={cursor}")
        assert answer.status == 200, answer.body
        numbers = [event["seq"] for event in answer.body["items"]]
        return answer.body["reset"], answer.body["cursor"], numbers


async def test_a_restored_database_makes_each_run_once_and_tells_subscribers_to_begin_anew(
    postgres_url: str, postgres_admin_url: str, tmp_path: Path
) -> None:
    """HAZARDS 1, 18: dumped with runs in the queue, under lease and waiting for the relay; then the original goes on."""
    dump = tmp_path / "dump"
    async with running_api(postgres_url) as api:
        shop = await make_shop(api)
        setting, owner, database = shop.setting, shop.owner, api.database
        modes = (ExecutionMode.RUN_ONLY, ExecutionMode.CREATE_ISSUE)
        rules = [(await make_autopilot(database, setting, execution_mode=mode)).id for mode in modes]
        await more_runs(database, rules, 6)
        await dispatch(database, setting)
        assert len(await relay(database)) == 6
        await more_runs(database, rules, 4)
        await dispatch(database, setting)
        await more_runs(database, rules, 6)
        token = LeaseToken(random_token())
        async with database.connection() as conn:
            await pending.claim(conn, token=token, limit=3, max_bytes=1 << 20, lease_s=3600, pace_per_min=60)

        await run("pg_dump", "--dbname", postgres_url, "--format=custom", "--file", str(dump))
        await execute(database, END_LEASES)
        await dispatch(database, setting)
    lost = "1.16"
    assert await page(postgres_url, owner, "1.10") == (False, lost, list(range(11, 17)))

    async with restored(postgres_admin_url, dump) as url:
        assert await page(url, owner, lost) == (True, "1.10", []), "beyond what was restored"
        assert await page(url, owner, "1.4") == (False, "1.10", list(range(5, 11)))
        async with Database(url, name="restored") as database:
            await dispatch(database, setting)
            assert len(await fetch(database, "SELECT 1 FROM dispatch_queue")) == 3, (
                "their lease outlives the dump"
            )
            # The database clock has passed the end of the lease by the time that a dump is restored.
            await execute(database, END_LEASES)
            await dispatch(database, setting)
            await more_runs(database, rules, 4)
            await dispatch(database, setting)
            made = await fetch(database, "SELECT run_id, count(*) AS tasks FROM agent_task GROUP BY run_id")
            assert [row["tasks"] for row in made] == [1] * 20
            assert len(await fetch(database, "SELECT 1 FROM autopilot_run WHERE status = 'pending'")) == 0
            await assert_coherent(database)
            told = await relay(database)
        assert [event.seq for event in told] == list(range(7, 21)), (
            "what the stream had not confirmed, and what is new"
        )
        [epoch] = {event.epoch for event in told}
        assert epoch > 1
        assert await page(url, owner, lost) == (True, f"{epoch}.20", []), (
            "16 exists again, and is another event"
        )
        assert await page(url, owner, f"{epoch}.18") == (False, f"{epoch}.20", [19, 20])

        async with restored(postgres_admin_url, dump) as again, Database(again, name="again") as database:
            await dispatch(database, setting)
            assert await page(again, owner, f"{epoch}.11") == (True, (await page(again, owner, "1.1"))[1], [])
    assert (await page(postgres_url, owner, lost))[0] is False, "the original goes on as it was"
