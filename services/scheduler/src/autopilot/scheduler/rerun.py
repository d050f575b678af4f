"""`python -m autopilot.scheduler rerun JOB KIND ID PLAN`: one more attempt for a plan that has failed (S7.16)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import datetime

from autopilot.domain.errors import AutopilotError
from autopilot.kit import config as configuration
from autopilot.scheduler.config import SchedulerConfig
from autopilot.storage import executions
from autopilot.storage.database import Database
from autopilot.storage.executions import PlanKey, Scope

USAGE = "usage: python -m autopilot.scheduler rerun JOB KIND ID PLAN   (PLAN as 2026-01-31T09:00:00Z)"


def main(arguments: Sequence[str]) -> int:
    """Ask for the rerun and say what will happen; the exit code is 0 only where a scheduler will run it."""
    plan = _read(arguments)
    if plan is None:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        config = configuration.load(SchedulerConfig, os.environ)
        told, text = asyncio.run(_request(config.database_url.reveal(), plan))
    except AutopilotError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    (sys.stdout if told else sys.stderr).write(f"{text}\n")
    return 0 if told else 1


def _read(arguments: Sequence[str]) -> PlanKey | None:
    try:
        job_name, kind, scope_id, plan_text = arguments
        plan_time = datetime.fromisoformat(plan_text)
    except ValueError:
        return None
    if plan_time.tzinfo is None:
        return None
    return PlanKey(job_name=job_name, scope=Scope(kind, scope_id), plan_time=plan_time)


async def _request(dsn: str, plan: PlanKey) -> tuple[bool, str]:
    async with Database(dsn, name="rerun", max_size=1) as database:
        return await request_rerun(database, plan)


async def request_rerun(database: Database, plan: PlanKey) -> tuple[bool, str]:
    """Whether the plan will run again, and a sentence about it."""
    async with database.connection() as conn:
        if await executions.request_rerun(conn, plan):
            return True, "the next tick of a scheduler will run this plan again"
        state = await executions.find_state(conn, plan)
    if state is None:
        return False, "there is no such plan; nothing was done"
    return False, f"the plan is {state}, and only one that is FAILED can run again; nothing was done"
