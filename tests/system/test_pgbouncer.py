"""All services behind a real pgbouncer in transaction mode: the work is done once each, also when the pooler restarts (PG6)."""

from __future__ import annotations

import asyncio
import uuid

import asyncpg
import pytest
from tests.support.pgbouncer import SERVERS_OF_EACH, TIMEOUTS, Pgbouncer, running_pgbouncer
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable

pytestmark = pytest.mark.timeout(240)

WEBHOOKS = 40
OCCURRENCES = 20


async def show(url: str, setting: str) -> str:
    async with Database(url, name="test", pooler=True) as database, database.connection() as conn:
        return str(await conn.fetchval("SELECT current_setting($1)", setting))


async def deliver(system: System, token: str) -> str:
    """The run of one webhook, sent as by a sender that sends again what was not taken."""
    delivery = str(uuid.uuid4())

    async def once() -> str | None:
        reply = await system.post_webhook(token, {}, delivery=delivery)
        return str(reply.body["run_id"]) if reply.status == 200 else None

    return await eventually(once, "the webhook taken")


async def work(system: System, token: str, schedules: list[str]) -> set[str]:
    """Webhooks and occurrences at once; the runs of the webhooks."""
    sent = [deliver(system, token) for _ in range(WEBHOOKS)]
    taken, _ = await asyncio.gather(asyncio.gather(*sent), system.make_due(*schedules))
    return set(taken)


async def all_done(system: System, wanted: int) -> bool:
    [row] = await system.fetch("SELECT count(*) AS runs, count(completed_at) AS ended FROM autopilot_run")
    return bool(row["runs"] >= wanted and row["runs"] == row["ended"])


async def start_services(system: System, pgbouncer: Pgbouncer) -> None:
    def start(service: str) -> None:
        env = {"AUTOPILOT_DATABASE_URL": pgbouncer.url(service), "AUTOPILOT_DB_POOLER": "yes"}
        system.stack.start_service(service, env)

    await asyncio.gather(*(asyncio.to_thread(start, service) for service in TIMEOUTS))


async def test_the_services_work_through_transactions_that_share_a_few_connections(
    postgres_admin_url: str, postgres_template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two connections to Postgres for each service; the second half of the work meets a pooler that is killed."""
    nobody = dict.fromkeys(TIMEOUTS, 0)
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_pgbouncer(url) as pgbouncer,
        running_system(replicas=nobody, database_url=url) as system,
    ):
        await start_services(system, pgbouncer)
        for service, timeouts in TIMEOUTS.items():
            for name, value in timeouts.items():
                assert await show(pgbouncer.url(service), name) == value
        async with system.working_runtime("worker", concurrency=8) as agent:
            rules = [await system.make_autopilot(agent, mode) for mode in ("run_only", "create_issue")]
            token = await system.make_webhook(rules[0])
            schedules = [await system.make_schedule(rules[n % 2]) for n in range(2 * OCCURRENCES)]
            webhooks = await work(system, token, schedules[:OCCURRENCES])
            await eventually(lambda: all_done(system, WEBHOOKS + OCCURRENCES), "the first half done")
            clients, servers = pgbouncer.count("login attempt"), pgbouncer.count("new connection to server")

            second = asyncio.create_task(work(system, token, schedules[OCCURRENCES:]))
            await asyncio.to_thread(pgbouncer.crash)
            webhooks |= await second
            wanted = 2 * (WEBHOOKS + OCCURRENCES)
            await eventually(lambda: all_done(system, wanted), "the second half done")
        runs = await system.fetch("SELECT id, source, status, trigger_id FROM autopilot_run")
        [tasks] = await system.fetch("SELECT count(*) AS made, max(attempt) AS attempts FROM agent_task")
        with capsys.disabled():
            print(
                f"\npgbouncer: {clients} connections of services shared {servers} of Postgres; {len(runs)} runs"
            )
        assert {str(run["id"]) for run in runs if run["source"] == "webhook"} == webhooks
        assert sorted(str(run["trigger_id"]) for run in runs if run["source"] == "schedule") == sorted(
            schedules
        )
        assert {run["status"] for run in runs} == {"completed"}
        assert (tasks["made"], tasks["attempts"]) == (wanted, 1)
        assert servers <= SERVERS_OF_EACH * len(TIMEOUTS) < clients


async def test_without_the_setting_for_poolers_nothing_connects(postgres_url: str) -> None:
    """The settings of a session, which a service sends otherwise, are refused and not silently lost."""
    async with running_pgbouncer(postgres_url) as pgbouncer:

        async def open_to_clients() -> bool:
            try:
                return await show(pgbouncer.url("ingress"), "lock_timeout") == "400ms"
            except DatabaseUnavailable:
                return False

        await eventually(open_to_clients, "pgbouncer answers")
        async with Database(pgbouncer.url("ingress"), name="test", acquire_timeout_s=30) as database:
            with pytest.raises((DatabaseUnavailable, asyncpg.PostgresError)):
                await database.ping()
        assert pgbouncer.count("unsupported startup parameter")
