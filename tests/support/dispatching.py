"""What tests of dispatch share: runs admitted through the engine, a dispatcher without its process, and rows to look at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from autopilot.bus.connection import Bus
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.pacing import Flood
from autopilot.dispatcher.worker import Worker
from autopilot.domain.admission import Actor
from autopilot.domain.ids import AutopilotId, DeliveryId, RunId, TriggerId, UserId
from autopilot.domain.states import Source
from autopilot.engine.admit import Firing, Outcome, admit_firings
from autopilot.kit.clock import Clock
from autopilot.kit.config import Secret
from autopilot.kit.ids import uuid7
from autopilot.storage.bodies import pack
from autopilot.storage.database import Database
from autopilot.storage.invariants import check_on


async def admit(database: Database, firings: Iterable[Firing]) -> list[Outcome]:
    """Admit in one transaction."""
    async with database.transaction() as conn:
        return await admit_firings(conn, list(firings))


def firing(
    autopilot_id: AutopilotId,
    source: Source = Source.API,
    *,
    clicker: UserId | None = None,
    share: bool = False,
    trigger_id: TriggerId | None = None,
    planned_at: datetime | None = None,
    payload: bytes | None = None,
) -> Firing:
    """One request for a run, by an api caller unless said otherwise."""
    return Firing(
        run_id=RunId(uuid7()),
        autopilot_id=autopilot_id,
        actor=Actor(source=source, clicker=clicker, clicker_has_share=share),
        trigger_id=trigger_id,
        planned_at=planned_at,
        payload=payload,
    )


async def admit_one(database: Database, autopilot_id: AutopilotId, **options: Any) -> RunId:
    """Admit one run and say which."""
    one = firing(autopilot_id, **options)
    await admit(database, [one])
    return one.run_id


async def receive(
    database: Database, trigger_id: TriggerId, body: bytes, *, event: str = "push", key: str | None = None
) -> tuple[RunId, DeliveryId]:
    """A webhook delivery with its pending run, as ingress writes them."""
    run_id, delivery_id = RunId(uuid7()), DeliveryId(uuid7())
    async with database.transaction() as conn:
        await conn.execute(
            """INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, dedupe_key, dedupe_source,
                      signature_status, status, headers, content_type, response_status, response_body, run_id)
               SELECT $1, workspace_id, autopilot_id, id, provider, $3, $4::text, CASE WHEN $4::text IS NOT NULL THEN 'delivery_id' END,
                      'not_required', 'queued', '{}', 'application/json', 200, '{}', $5
                 FROM autopilot_trigger WHERE id = $2""",
            *(delivery_id, trigger_id, event, key, run_id),
        )
        await conn.execute(
            "INSERT INTO webhook_body (delivery_id, body, raw_size) VALUES ($1, $2, $3)",
            delivery_id,
            *pack(body),
        )
        if key is not None:
            await conn.execute(
                "INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id, body_sha) VALUES ($1, $2, $3, sha256($4))",
                *(trigger_id, key, delivery_id, body),
            )
        await conn.execute(
            """INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id,
                      rule_version, webhook_delivery_id, accountable_id, attribution_source)
               SELECT $1, t.workspace_id, t.autopilot_id, t.id, 'webhook', 'pending', a.execution_mode, a.version_id, a.version, $2,
                      t.published_by, 'trigger_owner'
                 FROM autopilot_trigger t JOIN autopilot a ON a.id = t.autopilot_id WHERE t.id = $3""",
            *(run_id, delivery_id, trigger_id),
        )
        await conn.execute(
            """INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id, size)
               SELECT $1, autopilot_id, id, octet_length($3::bytea) FROM autopilot_trigger WHERE id = $2""",
            *(run_id, trigger_id, body),
        )
    return run_id, delivery_id


async def note_plan(database: Database, one: Firing) -> None:
    """The finished plan that the scheduler writes beside the run."""
    await execute(
        database,
        """INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry,
                  runner_id, lease_token, stale_at, schedule_rev, result, started_at, finished_at)
           SELECT $1, 'autopilot_schedule_dispatch', 'trigger', t.id::text, $3, 'SUCCESS', 3, true, $1, $1, clock_timestamp() + interval '5 minutes',
                  t.schedule_rev, '{}', now(), now()
             FROM autopilot_trigger t WHERE t.id = $2""",
        *(uuid7(), one.trigger_id, one.planned_at),
    )


def worker(
    database: Database,
    *,
    bus: Bus | None = None,
    flood: Flood | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Worker:
    """A dispatch loop's work, to be stepped by hand."""
    config = msgspec.structs.replace(DispatcherConfig(database_url=Secret("postgresql://unused")), **settings)
    return Worker(
        database, bus or Bus(None, name="test"), config, tell=lambda: None, flood=flood, clock=clock
    )


async def drain(one: Worker) -> None:
    """Step until there is nothing to do."""
    while await one.step():
        pass


async def row(database: Database, table: str, id_: object) -> asyncpg.Record:
    """One row by its id."""
    found = await fetch(database, f"SELECT * FROM {table} WHERE id = $1", id_)
    assert len(found) == 1, f"no row of {table} has id {id_}"
    return found[0]


async def fetch(database: Database, sql: str, *arguments: object) -> list[asyncpg.Record]:
    async with database.connection() as conn:
        return await conn.fetch(sql, *arguments)


async def execute(database: Database, sql: str, *arguments: object) -> None:
    async with database.connection() as conn:
        await conn.execute(sql, *arguments)


async def until_somebody_waits(database: Database) -> None:
    """Return when a session of this database waits for a lock; those of other databases of the server say nothing."""
    async with asyncio.timeout(30):
        while not await fetch(
            database,
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        ):
            await asyncio.sleep(0)


async def assert_coherent(database: Database) -> None:
    """Every invariant holds."""
    broken = [str(finding) for finding in await check_on(database) if finding.fatal]
    assert not broken, "\n".join(broken)
