"""Rules in the database: what every edit publishes, re-stamps and reschedules."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support import rules as world

from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test-rules") as database:
        yield database


@pytest.fixture
async def setting(database: Database) -> world.Setting:
    return await world.make_setting(database)


async def test_a_new_rule_is_its_own_first_version(database: Database, setting: world.Setting) -> None:
    """S5.4, S5.5."""
    autopilot = await world.make_autopilot(database, setting)
    trigger = await world.make_schedule_trigger(database, setting, autopilot.id, "0 9 * * 1-5")
    hook = await world.make_webhook_trigger(database, setting, autopilot.id, secret="s" * 16)
    assert (autopilot.version, autopilot.rev, autopilot.rule_owner_id) == (1, 1, setting.owner_id)
    assert trigger.next_run_at is not None
    assert hook.token.startswith("awt_")
    async with database.connection() as conn:
        rows = await conn.fetch("SELECT version, change, rule FROM autopilot_rule_version ORDER BY version")
    assert [(r["version"], r["change"]) for r in rows] == [
        (1, "create"),
        (2, "add trigger"),
        (3, "add trigger"),
    ]
    assert "s" * 16 not in str(rows)
