"""What tests of the scheduler share: a schedule job without its process, and triggers that are due to the second."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
from tests.support import rules
from tests.support.dispatching import execute, fetch
from tests.support.rules import Setting

from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.scheduler.jobs.schedule import ScheduleJob
from autopilot.storage.database import Database

_TODAY = datetime.now(UTC)
# Half a year from now, so that whatever the day, what a test sets as next_run_at is the only occurrence about now.
FAR_OFF = datetime(_TODAY.year + (_TODAY.month > 6), (_TODAY.month + 5) % 12 + 1, 1, tzinfo=UTC)
YEARLY = f"0 0 1 {FAR_OFF.month} *"


class Scheduler(ScheduleJob):
    """The schedule job with its wake-ups counted."""

    def __init__(self, database: Database, *, batch: int = 500) -> None:
        self.wakes = 0
        super().__init__(database, wake_dispatch=self._count, batch=batch)

    def _count(self) -> None:
        self.wakes += 1

    async def drain(self) -> None:
        """Step until nothing was done."""
        while await self.step() is True:
            pass


async def due_trigger(
    database: Database,
    setting: Setting,
    *,
    autopilot_id: AutopilotId | None = None,
    cron: str = YEARLY,
    late_s: float = 1,
    rule: dict[str, Any] | None = None,
    **fields: Any,
) -> TriggerId:
    """A schedule whose next_run_at was exactly so many seconds ago, of a rule of its own unless one is given."""
    if autopilot_id is None:
        autopilot_id = (await rules.make_autopilot(database, setting, **(rule or {}))).id
    trigger = await rules.make_schedule_trigger(database, setting, autopilot_id, cron, **fields)
    await make_due(database, trigger.id, late_s=late_s)
    return trigger.id


async def make_due(database: Database, trigger_id: TriggerId, *, late_s: float = 1) -> None:
    """Say when a trigger's next occurrence was."""
    await execute(
        database,
        "UPDATE autopilot_trigger SET next_run_at = clock_timestamp() - make_interval(secs => $2) WHERE id = $1",
        *(trigger_id, late_s),
    )


async def due_at(database: Database, trigger_id: TriggerId) -> datetime | None:
    """A trigger's next_run_at."""
    [row] = await fetch(database, "SELECT next_run_at FROM autopilot_trigger WHERE id = $1", trigger_id)
    at: datetime | None = row["next_run_at"]
    return at


async def runs_of(database: Database, trigger_id: TriggerId) -> list[asyncpg.Record]:
    """A trigger's runs, oldest plan first; those whose plan was taken come last."""
    sql = "SELECT * FROM autopilot_run WHERE trigger_id = $1 ORDER BY planned_at NULLS LAST, id"
    return await fetch(database, sql, trigger_id)


async def executions_of(database: Database, trigger_id: TriggerId) -> list[asyncpg.Record]:
    """A trigger's executions, oldest plan first."""
    sql = "SELECT * FROM sys_cron_executions WHERE scope_id = $1 ORDER BY plan_time"
    return await fetch(database, sql, str(trigger_id))


async def make_retry_due(database: Database, trigger_id: TriggerId) -> None:
    """Let the wait before a failed plan's next attempt be over."""
    await execute(
        database,
        """UPDATE sys_cron_executions SET next_retry_at = clock_timestamp()
            WHERE scope_id = $1 AND next_retry_at IS NOT NULL""",
        str(trigger_id),
    )


async def forbid_runs(database: Database, trigger_id: TriggerId) -> None:
    """Make the database refuse every run of one trigger, as a fault that nobody foresaw would."""
    await execute(
        database,
        f"""CREATE FUNCTION refuse_run() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN
                IF NEW.trigger_id = '{trigger_id}' AND NEW.status <> 'failed' THEN RAISE EXCEPTION 'poison'; END IF;
                RETURN NEW;
            END $$""",
    )
    await execute(
        database,
        "CREATE TRIGGER refuse_run BEFORE INSERT ON autopilot_run FOR EACH ROW EXECUTE FUNCTION refuse_run()",
    )


async def allow_runs(database: Database) -> None:
    """Take the fault away."""
    await execute(database, "DROP FUNCTION refuse_run() CASCADE")
