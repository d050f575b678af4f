"""An upgrade under load, the schema first, then every replica in turn: nothing is lost, nothing happens twice (S15, S1.1)."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
import uuid
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from tests.support.metric_catalogue import names_in
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

from autopilot.local.services import ServiceProcess
from autopilot.storage import migrate

pytestmark = pytest.mark.timeout(300)

TWO = {"scheduler": 2, "dispatcher": 2, "rules-api": 2, "ingress": 2}
TRIGGERS = 30
GRACE_S = 30.0
ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"


# What a release may do to tables while the one before works on them: add.
NEXT_REVISION = """
from autopilot.storage.revision import run_body

revision = "0002"
down_revision = "0001"
BODY = '''
ALTER TABLE autopilot_run ADD COLUMN added text NOT NULL DEFAULT 'of the next release';
ALTER TABLE dispatch_queue ADD COLUMN added bigint;
ALTER TABLE agent_task ADD COLUMN added boolean NOT NULL DEFAULT false;
ALTER TABLE webhook_delivery ADD COLUMN added jsonb;
CREATE TABLE added (run_id uuid PRIMARY KEY REFERENCES autopilot_run (id) ON DELETE CASCADE);
CREATE INDEX added_by_run ON autopilot_run (added);
'''


def upgrade() -> None:
    run_body(BODY)
"""


MIGRATION_WAITS = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND query LIKE '%ADD COLUMN%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


class Sender:
    """Webhooks, one after the other, through a balancer that turns to the next replica when one does not take a request."""

    def __init__(self, system: System, token: str) -> None:
        self._system = system
        self._token = token
        self._replicas = itertools.cycle(system.stack.processes["ingress"])
        self.stopped = asyncio.Event()
        self.accepted: dict[str, str] = {}
        self.turned_away = 0

    async def run(self) -> None:
        while not self.stopped.is_set():
            await self._send(str(uuid.uuid4()))
            await asyncio.sleep(0.1)

    async def _send(self, delivery: str) -> None:
        while True:
            url = next(self._replicas).url
            try:
                reply = await self._system.post_webhook(self._token, {}, delivery=delivery, url=url)
            except aiohttp.ClientError:
                self.turned_away += 1
                await asyncio.sleep(0.01)
                continue
            assert reply.status == 200, reply.body
            self.accepted[delivery] = reply.body["run_id"]
            return


async def fire(system: System, triggers: list[str], stopped: asyncio.Event) -> None:
    """Let one schedule after the other become due, evenly over the time that the restarts take."""
    for trigger in triggers:
        await system.make_due(trigger)
        await asyncio.sleep(0 if stopped.is_set() else 0.2)


async def roll(process: ServiceProcess) -> float:
    """Restart one replica in order; the seconds from SIGTERM to its exit."""
    began = time.monotonic()
    process.ask_to_end()
    code = await asyncio.to_thread(process.wait, GRACE_S)
    took = time.monotonic() - began
    assert code == 0, f"{process.name} did not end in order"
    await asyncio.to_thread(process.restart)
    return took


async def migrate_beside(system: System, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Add to the hot tables under load, while somebody reads them for long; the seconds until it was done."""
    revision = folder / "0002_added.py"
    revision.write_text(NEXT_REVISION)
    config = migrate._config()
    places = [str(Path(migrate.__file__).parent / "migrations" / "versions"), str(folder)]
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(places))
    monkeypatch.setattr(migrate, "_config", lambda: config)
    monkeypatch.setattr(migrate, "REST_S", 0.5)

    async def waits_for_locks() -> bool:
        return bool(await system.fetch(MIGRATION_WAITS))

    async def has_given_up() -> bool:
        return not await waits_for_locks()

    began = time.monotonic()
    async with system.database.transaction() as reader:
        await reader.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await reader.execute("SELECT FROM autopilot_run LIMIT 1")
        migrated = asyncio.create_task(migrate.upgrade(system.stack.database_url))
        await eventually(waits_for_locks, "the migration stands before the reader")
        await eventually(has_given_up, "the migration lets the others pass")
        assert not migrated.done()
    assert (await migrated).current == "0002"
    return time.monotonic() - began


async def told_without_traffic(system: System) -> set[str]:
    """The names of all series that the processes tell before anything happens."""
    told: set[str] = set()
    async with aiohttp.ClientSession() as session:
        for process in system.stack.all_processes():
            async with session.get(f"http://127.0.0.1:{process.health_port}/metrics") as answer:
                told |= set(re.findall(r"^([a-z_]+)[ {]", await answer.text(), re.MULTILINE))
    return told


async def what_alerts_look_at(system: System) -> bool:
    """S15, OB3: silence must mean that all is well, so each series that an alert looks at is there from the start."""
    return names_in(ALERTS.read_text()) <= await told_without_traffic(system)


async def test_an_upgrade_under_load_loses_0_and_doubles_0(
    postgres_admin_url: str, postgres_template: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The schema of a next release under this one, then each service's replicas in turn, the services side by side; a task that is executed twice would write two lines."""
    executed = tmp_path / "executed"
    command = f"echo $AUTOPILOT_RUN_ID >> {executed}"
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(nats=True, replicas=TWO, database_url=url) as system,
        system.working_runtime("worker", command, concurrency=4) as agent,
    ):
        await eventually(lambda: what_alerts_look_at(system), "each series that alerts look at")
        rules = [await system.make_autopilot(agent, mode) for mode in ("run_only", "create_issue")]
        triggers = [await system.make_schedule(rules[n % 2]) for n in range(TRIGGERS)]
        sender = Sender(system, await system.make_webhook(rules[0]))
        load = [
            asyncio.create_task(sender.run()),
            asyncio.create_task(fire(system, triggers, sender.stopped)),
        ]
        await eventually(lambda: asyncio.sleep(0, len(sender.accepted) > 3), "work to be disturbed")
        migrating = await migrate_beside(system, tmp_path, monkeypatch)
        drained: dict[str, float] = {}
        for number in range(2):
            replicas = [replicas[number] for replicas in system.stack.processes.values()]
            for process, took in zip(replicas, await asyncio.gather(*map(roll, replicas)), strict=True):
                drained[process.name] = round(took, 2)
        sender.stopped.set()
        await asyncio.gather(*load)

        wanted = len(sender.accepted) + TRIGGERS
        await eventually(lambda: all_done(system, wanted), f"{wanted} runs done", within_s=60, every_s=0.5)
        runs = await system.fetch("SELECT id, source, status, trigger_id FROM autopilot_run")
        lines = Counter(executed.read_text().split())
        with capsys.disabled():
            print(
                f"\nmigration and restart of 8 replicas: {len(sender.accepted)} webhooks, {TRIGGERS} occurrences, {len(lines)} tasks; "
                f"{sender.turned_away} requests turned to another replica; seconds to drain: {drained}; "
                f"the migration took {migrating:.1f} s, its wait for locks included"
            )
        assert {str(run["id"]) for run in runs if run["source"] == "webhook"} == set(sender.accepted.values())
        assert sorted(str(run["trigger_id"]) for run in runs if run["source"] == "schedule") == sorted(
            triggers
        )
        assert {run["status"] for run in runs} == {"completed"}
        assert lines == {str(run["id"]): 1 for run in runs}
        tasks = await system.fetch("SELECT run_id, attempt FROM agent_task")
        assert len(tasks) == len(runs)


async def all_done(system: System, wanted: int) -> bool:
    [row] = await system.fetch("SELECT count(*) AS runs, count(completed_at) AS ended FROM autopilot_run")
    return bool(row["runs"] >= wanted and row["runs"] == row["ended"])
