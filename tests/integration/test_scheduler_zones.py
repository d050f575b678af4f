"""Newer zone data moves the next occurrences of schedules; older data moves none (S7.9, HAZARDS 25)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import execute, fetch
from tests.support.rules import Setting

from autopilot.domain import cron
from autopilot.scheduler.jobs import zones
from autopilot.storage.database import Database
from autopilot.storage.triggers import Trigger

VERSION = cron.tzdata_version()


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def trigger(database: Database) -> Trigger:
    """A daily schedule whose next occurrence was computed an hour off, with other zone data."""
    setting: Setting = await rules.make_setting(database)
    autopilot = await rules.make_autopilot(database, setting)
    made = await rules.make_schedule_trigger(
        database, setting, autopilot.id, "0 9 * * *", timezone="Europe/Berlin"
    )
    await execute(
        database,
        "UPDATE autopilot_trigger SET next_run_at = next_run_at + interval '1 hour', tzdata_version = '2020.1' WHERE id = $1",
        made.id,
    )
    return made


async def state(database: Database, trigger: Trigger) -> dict[str, Any]:
    rows = await fetch(
        database,
        "SELECT next_run_at, tzdata_version, schedule_error, schedule_rev FROM autopilot_trigger WHERE id = $1",
        trigger.id,
    )
    return dict(rows[0])


def an_hour_off(trigger: Trigger) -> datetime:
    assert trigger.next_run_at is not None
    return trigger.next_run_at + timedelta(hours=1)


async def test_newer_data_moves_the_next_occurrence_once(database: Database, trigger: Trigger) -> None:
    assert await zones.recompute_all(database, VERSION) == 1
    now = await state(database, trigger)
    assert (now["next_run_at"], now["tzdata_version"]) == (trigger.next_run_at, VERSION)
    assert await zones.recompute_all(database, VERSION) == 0


async def test_older_data_moves_nothing(database: Database, trigger: Trigger) -> None:
    """A replica of the release before must not undo it; 2019.12 is newer than 2019.3, and older than 2020.1."""
    assert await zones.recompute_all(database, "2019.12") == 0
    assert (await state(database, trigger))["next_run_at"] == an_hour_off(trigger)


async def test_an_occurrence_that_is_due_already_stays(database: Database, trigger: Trigger) -> None:
    await execute(
        database,
        "UPDATE autopilot_trigger SET next_run_at = clock_timestamp() - interval '1 second' WHERE id = $1",
        trigger.id,
    )
    assert await zones.recompute_all(database, VERSION) == 0
    assert (await state(database, trigger))["tzdata_version"] == "2020.1"


async def test_an_edit_in_progress_is_not_overwritten(database: Database, trigger: Trigger) -> None:
    """The row is locked by the edit: it is left to the next hour."""
    async with database.transaction() as conn:
        await conn.execute(
            "UPDATE autopilot_trigger SET schedule_rev = schedule_rev + 1 WHERE id = $1", trigger.id
        )
        assert await zones.recompute_all(database, VERSION) == 0
    assert (await state(database, trigger))["next_run_at"] == an_hour_off(trigger)


async def test_a_zone_that_is_gone_stops_that_schedule_alone_with_its_error(
    database: Database, trigger: Trigger
) -> None:
    await execute(
        database, "UPDATE autopilot_trigger SET timezone = 'Nowhere/Gone' WHERE id = $1", trigger.id
    )
    assert await zones.recompute_all(database, VERSION) == 1
    now = await state(database, trigger)
    assert now["next_run_at"] is None
    assert "Nowhere/Gone" in now["schedule_error"]
