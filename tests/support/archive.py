"""What tests of retention begin with: one example of each kind of history, made by the real code at one instant of a settable clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from tests.support import rules
from tests.support.database_time import DatabaseTime, simulated_time
from tests.support.dispatching import (
    admit_one,
    assert_coherent,
    drain,
    execute,
    fetch,
    receive,
    row,
    worker,
)
from tests.support.rules import Setting, WebhookTrigger
from tests.support.scheduling import Scheduler, due_trigger

from autopilot.domain.ids import AutopilotId, DeliveryId, IssueId, LeaseToken, RunId, TaskId, TriggerId
from autopilot.domain.states import ExecutionMode, IssueStatus
from autopilot.engine import finish
from autopilot.engine.issues import IssueEdit, edit_issue
from autopilot.kit.config import Secret
from autopilot.kit.ids import random_token, uuid7
from autopilot.scheduler.config import SchedulerConfig
from autopilot.scheduler.jobs.retention import Kept, delete_old, kept_by
from autopilot.storage import events
from autopilot.storage.database import Database
from autopilot.storage.invariants import check_on

KEEP: Final = kept_by(SchedulerConfig(database_url=Secret("postgresql://unused")))

TABLES: Final = (
    "autopilot_run",
    "agent_task",
    "webhook_delivery",
    "webhook_body",
    "webhook_dedupe",
    "sys_cron_executions",
    "run_event",
    "run_stats_hourly",
    "autopilot_rule_version",
    "issue",
    "issue_comment",
    "task_output",
    "inbox_item",
)


class Archive:
    """A workspace whose history grows old. `database` lives in the settable time, `today` in the real one, where all that
    the test makes stays of today, so that the invariants look at all of it."""

    def __init__(self, database: Database, today: Database, time: DatabaseTime, setting: Setting) -> None:
        self.database = database
        self.today = today
        self.time = time
        self.setting = setting
        self.start = time.now

    async def age(self, days: float, *, plus: timedelta = timedelta(0)) -> None:
        """Let it be so many days after everything began."""
        await self.time.set(self.start + timedelta(days=days) + plus)

    async def sweep(self, keep: Kept = KEEP) -> dict[str, Any]:
        """One run of the job; whatever goes, what is left is coherent by either clock."""
        await self.number_events()
        result = await delete_old(self.database, keep)
        await self.assert_coherent()
        return result

    async def assert_coherent(self) -> None:
        await assert_coherent(self.database)
        # By design events and executions come and go apart from their run, and its issue stays; nothing else may lead nowhere.
        broken = [str(finding) for finding in await check_on(self.today) if finding.fatal]
        expected = (
            "events_match_runs",
            "event_has_its_run",
            "scheduled_run_has_its_plan",
            "finished_plan_has_its_run",
            "is a issue of run",
        )
        unexpected = [finding for finding in broken if not any(text in finding for text in expected)]
        assert not unexpected, "\n".join(unexpected)

    async def counts(self) -> dict[str, int]:
        """How many rows there are of each kind."""
        [found] = await fetch(
            self.database, f"SELECT {', '.join(f'(SELECT count(*) FROM {t}) AS {t}' for t in TABLES)}"
        )
        return dict(found)

    async def exists(self, table: str, id_: object, column: str = "id") -> bool:
        return bool(await fetch(self.database, f"SELECT 1 FROM {table} WHERE {column} = $1", id_))

    async def rule(self, mode: ExecutionMode = ExecutionMode.RUN_ONLY) -> AutopilotId:
        return (await rules.make_autopilot(self.database, self.setting, execution_mode=mode)).id

    async def hook(self, mode: ExecutionMode = ExecutionMode.RUN_ONLY) -> WebhookTrigger:
        return await rules.make_webhook_trigger(self.database, self.setting, await self.rule(mode))

    async def started(self, mode: ExecutionMode = ExecutionMode.RUN_ONLY) -> RunId:
        """A run whose task waits for a runtime."""
        run_id = await admit_one(self.database, await self.rule(mode))
        await self.dispatch()
        return run_id

    async def ended(self, mode: ExecutionMode = ExecutionMode.RUN_ONLY) -> RunId:
        """A completed run; the issue of one that has any is in review."""
        run_id = await self.started(mode)
        await self.complete(run_id)
        return run_id

    async def received(
        self, hook: WebhookTrigger, *, key: str | None = None, complete: bool = True
    ) -> tuple[RunId, DeliveryId]:
        """A webhook's delivery with its run, completed unless that is left to the caller."""
        run_id, delivery_id = await receive(self.database, hook.id, b'{"a": 1}', key=key)
        if complete:
            await self.dispatch()
            await self.complete(run_id)
        return run_id, delivery_id

    async def undecided(
        self,
        hook: WebhookTrigger,
        status: str,
        *,
        replayed_from: DeliveryId | None = None,
        host_ahead: timedelta = timedelta(0),
    ) -> DeliveryId:
        """A delivery without a run, with its body, its id made by a host whose clock is ahead; one that is `queued` waits
        in the queue."""
        ahead_ms = host_ahead // timedelta(milliseconds=1)
        delivery_id = DeliveryId(UUID(int=uuid7().int + (ahead_ms << 80)))
        signature = "invalid" if status == "rejected" else "not_required"
        reason = {"rejected": "invalid_signature", "ignored": "event_filtered", "queued": None}[status]
        await execute(
            self.database,
            """INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status,
                      headers, response_status, response_body, reason_code, replayed_from, replayed_by)
               SELECT $1, workspace_id, autopilot_id, id, 'generic', 'push', $3, $4, '{}', 200, '{}', $5, $6::uuid,
                      CASE WHEN $6::uuid IS NOT NULL THEN $1::uuid END
                 FROM autopilot_trigger WHERE id = $2""",
            *(delivery_id, hook.id, signature, status, reason, replayed_from),
        )
        await execute(self.database, "INSERT INTO webhook_body VALUES ($1, '{}')", delivery_id)
        if status == "queued":
            await execute(
                self.database,
                """INSERT INTO dispatch_queue (delivery_id, autopilot_id, trigger_id)
                   SELECT id, autopilot_id, trigger_id FROM webhook_delivery WHERE id = $1""",
                delivery_id,
            )
        return delivery_id

    async def scheduled(self) -> tuple[TriggerId, RunId]:
        """A schedule's completed run, with the execution of its plan."""
        trigger_id = await due_trigger(
            self.database, self.setting, rule={"execution_mode": ExecutionMode.RUN_ONLY}
        )
        await Scheduler(self.database).drain()
        await self.dispatch()
        [run] = await fetch(self.database, "SELECT id FROM autopilot_run WHERE trigger_id = $1", trigger_id)
        await self.complete(run["id"])
        return trigger_id, run["id"]

    async def executed(self, job_name: str, *, days_ago: float = 0, **columns: Any) -> None:
        """An execution that succeeded now, unless `columns` say otherwise, of a plan so many days ago."""
        given = {
            "id": uuid7(),
            "job_name": job_name,
            "scope_kind": "global",
            "scope_id": "all",
            "plan_time": self.time.now - timedelta(days=days_ago),
            "state": "SUCCESS",
            "max_attempts": 3,
            "reentry": True,
            "runner_id": uuid7(),
            "lease_token": uuid7(),
            "stale_at": self.time.now + timedelta(minutes=1),
            "finished_at": self.time.now,
            **columns,
        }
        places = ", ".join(f"${n}" for n in range(1, len(given) + 1))
        await execute(
            self.database,
            f"INSERT INTO sys_cron_executions ({', '.join(given)}) VALUES ({places})",
            *given.values(),
        )

    async def counted(self, *, days: int) -> None:
        """Statistics of a rule for the hour that is now, and the same hour of the days that follow."""
        await execute(
            self.database,
            """INSERT INTO run_stats_hourly (workspace_id, autopilot_id, hour)
               SELECT $1, $2, $3::timestamptz + n * interval '1 day' FROM generate_series(0, $4::int - 1) n""",
            *(self.setting.workspace_id, await self.rule(), self.time.now, days),
        )

    async def dispatch(self) -> None:
        await rules.set_runtime(self.database, self.setting.runtime_id)
        await drain(worker(self.database))

    async def complete(self, run_id: RunId) -> None:
        """The run's task is claimed and done."""
        task_id = TaskId((await row(self.database, "autopilot_run", run_id))["task_id"])
        lease = LeaseToken(random_token())
        await execute(
            self.database,
            """UPDATE agent_task SET status = 'running', runtime_id = $2, claim_id = $3, lease_token = $3, claimed_at = clock_timestamp(),
                      started_at = clock_timestamp(), lease_until = clock_timestamp() + interval '1 minute' WHERE id = $1""",
            *(task_id, self.setting.runtime_id, lease),
        )
        async with self.database.transaction() as conn:
            await finish.complete_task(conn, task_id, lease, "Done.")

    async def printed(self, run_id: RunId) -> None:
        """Something that the run's task has printed."""
        await execute(
            self.database,
            "INSERT INTO task_output (task_id, attempt, place, text) SELECT task_id, 1, 0, 'x' FROM autopilot_run WHERE id = $1",
            run_id,
        )

    async def told(self) -> None:
        """A line in an inbox."""
        await execute(
            self.database,
            "INSERT INTO inbox_item (id, workspace_id, user_id, kind, title) VALUES ($1, $2, $3, 'issue', 't')",
            *(uuid7(), self.setting.workspace_id, self.setting.owner_id),
        )

    async def move_issue(self, run_id: RunId, status: IssueStatus) -> None:
        """What a person does with the issue of a run, which may be gone."""
        [issue] = await fetch(self.database, "SELECT id FROM issue WHERE origin_run_id = $1", run_id)
        async with self.database.transaction() as conn:
            await edit_issue(conn, self.setting.workspace_id, IssueId(issue["id"]), IssueEdit(status=status))

    async def number_events(self) -> None:
        """Give every event that waits its number, as one that the stream has confirmed."""
        async with self.database.connection() as conn:
            await events.open_heads(conn, 10_000)
        while await self.database.transact(lambda conn: events.sequence(conn, 10_000)):
            pass
        await execute(self.database, "UPDATE event_head SET relayed_seq = last_seq")


@asynccontextmanager
async def aging_archive(postgres_url: str) -> AsyncIterator[Archive]:
    """A new one in a migrated database; everything in it is made at one instant, now."""
    async with (
        simulated_time(postgres_url, datetime.now(UTC)) as time,
        Database(postgres_url, name="test", settings=time.url_settings) as database,
        Database(postgres_url, name="today") as today,
    ):
        yield Archive(database, today, time, await rules.make_setting(database))
