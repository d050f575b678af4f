"""The database is away until the dispatcher's pauses are long; it goes on as soon as it is back (S1.3, S10.2, CASES QW1)."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import admit_one, assert_coherent, fetch
from tests.support.system import eventually

from autopilot.local.postgres import PostgresServer
from autopilot.storage.database import Database
from autopilot.storage.migrate import upgrade

pytestmark = pytest.mark.timeout(240)

# After six failures in a row a loop pauses 16 s, give or take a fifth: far more than a busy machine takes to start Postgres
# and to go on. On an idle one it is two seconds.
FAILURES, PAUSE_S = 6, 16 * 0.8


@asynccontextmanager
async def own_server() -> AsyncIterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="autopilot-outage-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "postgres")
        await asyncio.to_thread(server.start)
        try:
            await upgrade(server.url)
            yield server
        finally:
            await asyncio.to_thread(server.stop)


async def lines(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stderr is not None
    while text := await process.stderr.readline():
        yield json.loads(text)


async def test_a_long_outage_is_over_as_soon_as_the_database_is_back() -> None:
    async with own_server() as server, Database(server.url, name="test") as database:
        autopilot = await rules.make_autopilot(database, await rules.make_setting(database))
        environ = {"AUTOPILOT_DATABASE_URL": server.url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "autopilot.dispatcher", env=environ, stderr=asyncio.subprocess.PIPE
        )
        try:
            before = await admit_one(database, autopilot.id)
            await eventually(lambda: started(database, before), "the first run started")
            waiting = await admit_one(database, autopilot.id)
            await asyncio.to_thread(server.stop, immediate=True)
            async with asyncio.timeout(60):
                async for line in lines(process):
                    paused = line["event"] == "loop_waits_for_infrastructure" and line["loop"] == "dispatch-0"
                    if paused and line["failures"] >= FAILURES:
                        break
            paused_at = time.monotonic()
            drained = asyncio.create_task(process.communicate())  # or a full pipe would stop it
            await asyncio.to_thread(server.start)
            after = await admit_one(database, autopilot.id)
            await eventually(lambda: started(database, after), "a new run started")
            await eventually(lambda: started(database, waiting), "the run that waited started")
            took_s = time.monotonic() - paused_at
            await assert_coherent(database)
            process.terminate()
            await drained
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0
    assert took_s < PAUSE_S, "it did not wait for the end of its pause"


async def started(database: Database, run_id: object) -> bool:
    [run] = await fetch(database, "SELECT status FROM autopilot_run WHERE id = $1", run_id)
    return bool(run["status"] == "issue_created")
