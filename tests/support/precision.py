"""Occurrences and retries spread evenly over the coming seconds, and how late each was settled by the database's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.support import rules
from tests.support.dispatching import execute, fetch
from tests.support.rules import Setting
from tests.support.scheduling import YEARLY

from autopilot.storage.database import Database
from autopilot.storage.schedules import JOB_NAME

_ADD_TRIGGERS = """
    INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone, catch_up,
           tzdata_version)
    SELECT gen_random_uuid(), workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone, catch_up,
           tzdata_version
      FROM autopilot_trigger, generate_series(2, $2) WHERE id = $1"""

# One trigger after the other comes due; those of the second half have a failed plan that does instead.
_SPREAD = """
    UPDATE autopilot_trigger t
       SET next_run_at = clock_timestamp() + make_interval(secs => $2::float8 + $3::float8 * numbered.place)
      FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM autopilot_trigger) numbered
     WHERE numbered.id = t.id AND numbered.place <= $1"""
_ADD_RETRIES = """
    INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
           lease_token, stale_at, finished_at, schedule_rev, error_code, error_message, next_retry_at)
    SELECT gen_random_uuid(), $1, 'trigger', id::text, '2026-01-01', 'FAILED', 3, true, id, id, now(), clock_timestamp(),
           schedule_rev, 'handler_error', 'for a test', clock_timestamp() + make_interval(secs => $3::float8 + $4::float8 * (place - $2))
      FROM (SELECT id, schedule_rev, row_number() OVER (ORDER BY id) AS place FROM autopilot_trigger) numbered
     WHERE place > $2"""
_DUE = """
    SELECT id::text AS scope_id, next_run_at AS due_at FROM autopilot_trigger WHERE next_run_at < now() + interval '1 hour'
    UNION ALL SELECT scope_id, next_retry_at FROM sys_cron_executions WHERE next_retry_at IS NOT NULL"""
_DONE = "SELECT scope_id, finished_at FROM sys_cron_executions WHERE state = 'SUCCESS' AND job_name = $1"


class Spread:
    """`plans` triggers and `retries` failed plans of others, each due `every_s` after the one before."""

    def __init__(self, database: Database, setting: Setting, *, plans: int, retries: int) -> None:
        self._database = database
        self._setting = setting
        self._plans = plans
        self._retries = retries

    async def make(self) -> None:
        """Make the triggers; none is due."""
        autopilot = await rules.make_autopilot(self._database, self._setting)
        first = await rules.make_schedule_trigger(self._database, self._setting, autopilot.id, YEARLY)
        await execute(self._database, _ADD_TRIGGERS, first.id, self._plans + self._retries)

    async def begin(self, *, after_s: float, every_s: float) -> None:
        """Let the first be due after so many seconds."""
        await execute(self._database, _SPREAD, self._plans, after_s, every_s)
        await execute(self._database, _ADD_RETRIES, JOB_NAME, self._plans, after_s, every_s)
        self._due = {row["scope_id"]: row["due_at"] for row in await fetch(self._database, _DUE)}
        assert len(self._due) == self._plans + self._retries

    async def lateness_ms(self, *, timeout_s: float) -> Sequence[float]:
        """Wait until all are settled, each by one execution; how late each was, in the order in which they were due."""
        async with asyncio.timeout(timeout_s):
            while len(done := await fetch(self._database, _DONE, JOB_NAME)) < len(self._due):
                await asyncio.sleep(0.2)
        finished = {row["scope_id"]: row["finished_at"] for row in done}
        in_order = sorted(self._due.items(), key=lambda item: item[1])
        return [(finished[scope_id] - due_at).total_seconds() * 1000 for scope_id, due_at in in_order]
