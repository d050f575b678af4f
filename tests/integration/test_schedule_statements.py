"""A fault in any statement of the schedule's turn loses and doubles nothing (CASES QW4, HAZARDS 9)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import assert_coherent
from tests.support.rules import Setting
from tests.support.scheduling import (
    Scheduler,
    due_at,
    due_trigger,
    executions_of,
    make_due,
    make_retry_due,
    runs_of,
)

from autopilot.domain.schedule import CatchUp
from autopilot.engine import admit
from autopilot.storage import facts, schedules
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention, DatabaseUnavailable

STATEMENTS = [
    (schedules, "peek"),
    (schedules, "lock_due"),
    (facts, "database_now"),
    (schedules, "find_plan_runs"),
    (facts, "load_snapshots"),
    (admit, "insert_runs"),
    (schedules, "record_finished"),
    (schedules, "advance"),
]


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


class FailsOnce:
    """A statement that raises the first time, before or after it was carried out."""

    def __init__(self, real: Any, error: Exception, *, after: bool) -> None:
        self.failed = False
        self._real = real
        self._error = error
        self._after = after

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.failed:
            return await self._real(*args, **kwargs)
        self.failed = True
        if self._after:
            await self._real(*args, **kwargs)
        raise self._error


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "error", [DatabaseUnavailable(), Contention(), RuntimeError("unforeseen")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize(("module", "name"), STATEMENTS, ids=[name for _, name in STATEMENTS])
async def test_the_schedule_survives_a_fault_in_each_statement(
    database: Database,
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    error: Exception,
    after: bool,
) -> None:
    first = await due_trigger(database, setting, late_s=2)
    second = await due_trigger(database, setting, late_s=1, catch_up=CatchUp.ALL)
    planned = {trigger_id: await due_at(database, trigger_id) for trigger_id in (first, second)}
    faulty = FailsOnce(getattr(module, name), error, after=after)
    monkeypatch.setattr(module, name, faulty)
    scheduler = Scheduler(database)
    with contextlib.suppress(type(error)):
        await scheduler.step()
    assert faulty.failed
    await scheduler.drain()
    for trigger_id in (first, second):
        await make_retry_due(database, trigger_id)
    await scheduler.drain()
    for trigger_id in (first, second):
        [run] = await runs_of(database, trigger_id)
        assert (run["status"], run["planned_at"]) == ("pending", planned[trigger_id])
        [execution] = await executions_of(database, trigger_id)
        assert execution["state"] == "SUCCESS"
        await make_due(database, trigger_id)
    await scheduler.drain()
    for trigger_id in (first, second):
        assert len(await runs_of(database, trigger_id)) == 2, "and the next occurrence comes too"
    await assert_coherent(database)
