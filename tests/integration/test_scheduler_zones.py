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


async def test_a_schedule_that_cannot_be_computed_holds_up_no_other(
    database: Database, trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.7: it stays as it is; the schedule job tells of it when it is due."""
    await execute(
        database,
        """INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_version_id, cron, timezone, catch_up,
                  tzdata_version, next_run_at)
           SELECT '00000000-0000-7000-8000-000000000001', workspace_id, autopilot_id, kind, published_version_id, '1 1 1 1 1',
                  timezone, catch_up, tzdata_version, next_run_at
             FROM autopilot_trigger WHERE id = $1""",
        trigger.id,
    )
    parse = cron.parse

    def fragile(expr: str) -> cron.CronSchedule:
        if expr == "1 1 1 1 1":
            raise OverflowError("a bug")
        return parse(expr)

    monkeypatch.setattr(cron, "parse", fragile)
    assert await zones.recompute_all(database, VERSION) == 1
    assert (await state(database, trigger))["next_run_at"] == trigger.next_run_at


@pytest.mark.parametrize(
    ("stored", "ours", "moved"),
    [("2020.1.post0", VERSION, 1), ("2020.1", "2020.2.post1", 1), ("2020.1", "2020.1rc0", 0)],
)
async def test_a_version_is_compared_by_its_numbers(
    database: Database, trigger: Trigger, stored: str, ours: str, moved: int
) -> None:
    """HAZARDS 25: the package has had releases such as 2021.2.post0."""
    await execute(database, "UPDATE autopilot_trigger SET tzdata_version = $1", stored)
    assert await zones.recompute_all(database, ours) == moved


async def stop(database: Database, trigger: Trigger, *, timezone: str, version: str = VERSION) -> None:
    await execute(
        database,
        "UPDATE autopilot_trigger SET next_run_at = NULL, schedule_error = 'timezone: unknown', timezone = $2,"
        " tzdata_version = $3 WHERE id = $1",
        *(trigger.id, timezone, version),
    )


async def test_a_schedule_that_older_data_stopped_goes_on_with_data_that_knows_its_zone(
    database: Database, trigger: Trigger
) -> None:
    """In a rolling upgrade the old replica meets a zone it does not know; nobody should have to edit the rule."""
    await stop(database, trigger, timezone="Europe/Berlin")
    assert await zones.recompute_all(database, VERSION) == 1
    now = await state(database, trigger)
    assert (now["next_run_at"], now["schedule_error"]) == (trigger.next_run_at, None)


async def test_a_schedule_that_is_still_unreadable_keeps_its_error_and_is_not_written_again(
    database: Database, trigger: Trigger
) -> None:
    await stop(database, trigger, timezone="Nowhere/Gone", version="2020.1")
    assert await zones.recompute_all(database, VERSION) == 0
    assert (await state(database, trigger))["schedule_error"] == "timezone: unknown"


@pytest.mark.parametrize("edit", ["paused", "disabled", "newer"])
async def test_a_stopped_schedule_that_may_not_run_is_left_alone(
    database: Database, trigger: Trigger, edit: str
) -> None:
    """A rule that is off stays off, and data that is older than the row's own decides nothing."""
    await stop(database, trigger, timezone="Europe/Berlin", version="9999.1" if edit == "newer" else VERSION)
    if edit == "paused":
        await execute(database, "UPDATE autopilot SET status = 'paused' WHERE id = $1", trigger.autopilot_id)
    elif edit == "disabled":
        await execute(database, "UPDATE autopilot_trigger SET enabled = false WHERE id = $1", trigger.id)
    assert await zones.recompute_all(database, VERSION) == 0
    assert (await state(database, trigger))["next_run_at"] is None
