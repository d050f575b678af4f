"""How schedulers that work at once divide what is due among them (S1.1, S7.9)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support import rules
from tests.support.rules import Setting
from tests.support.scheduling import due_trigger

from autopilot.domain.states import OverlapPolicy
from autopilot.storage import schedules
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


@pytest.mark.parametrize("policy", list(OverlapPolicy))
@pytest.mark.parametrize("each", [1, 3])
async def test_two_schedulers_take_half_of_what_is_due_each(
    database: Database, setting: Setting, policy: OverlapPolicy, each: int
) -> None:
    """S7.9: also of rules that are locked as a whole, because their policy looks at what is in flight."""
    rule_ids = [
        (await rules.make_autopilot(database, setting, overlap_policy=policy)).id for _ in range(12 // each)
    ]
    ids = {
        await due_trigger(database, setting, autopilot_id=rule_id)
        for rule_id in rule_ids
        for _ in range(each)
    }
    async with database.transaction() as one, database.transaction() as other:
        taken = [{trigger.id for trigger in await schedules.lock_due(conn, 6)} for conn in (one, other)]
    assert [len(share) for share in taken] == [6, 6]
    assert taken[0] | taken[1] == ids


async def test_rules_that_are_due_longest_are_taken_first(database: Database, setting: Setting) -> None:
    """S7.9: also where their policy looks at what is in flight."""
    rule = {"overlap_policy": OverlapPolicy.SKIP}
    ids = [
        await due_trigger(database, setting, late_s=late_s, rule=rule) for late_s in (5, 40, 10, 30, 20, 50)
    ]
    async with database.transaction() as conn:
        taken = [trigger.id for trigger in await schedules.lock_due(conn, 3)]
    assert taken == [ids[5], ids[1], ids[3]]
