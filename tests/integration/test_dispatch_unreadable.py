"""Runs whose stored facts cannot be read: they cost themselves attempts, and nobody else anything (S10.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.support import rules
from tests.support.dispatching import assert_coherent, drain, execute, receive, row, worker
from tests.support.rules import Setting

from autopilot.domain.ids import RunId
from autopilot.domain.states import ExecutionMode
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def garble_body(database: Database, run_id: RunId) -> None:
    await execute(
        database,
        r"""UPDATE webhook_body SET body = '\x00ff00ff', raw_size = 4000
             WHERE delivery_id = (SELECT webhook_delivery_id FROM autopilot_run WHERE id = $1)""",
        run_id,
    )


async def write_as_a_newer_program(database: Database, run_id: RunId) -> None:
    await execute(database, "ALTER TABLE autopilot_rule_version DISABLE TRIGGER USER")
    await execute(
        database,
        """UPDATE autopilot_rule_version SET rule = jsonb_set(rule, '{overlap_policy}', '"queue_all"')
            WHERE id = (SELECT rule_version_id FROM autopilot_run WHERE id = $1)""",
        run_id,
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(garble_body, "unexpected ZstdError", id="body"),
        pytest.param(write_as_a_newer_program, "cannot read the run's rule version", id="rule version"),
    ],
)
async def test_what_cannot_be_read_is_judged_by_itself_and_ends_after_five_attempts(
    database: Database, setting: Setting, spoil: Callable[[Database, RunId], Awaitable[None]], said: str
) -> None:
    """S10.2: reading a claim is not the place where one run stops all others, nor where it escapes its attempts."""
    broken_rule, sound_rule = [
        await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY) for _ in range(2)
    ]
    broken_hook, sound_hook = [
        await rules.make_webhook_trigger(database, setting, rule.id) for rule in (broken_rule, sound_rule)
    ]
    broken, delivery = await receive(database, broken_hook.id, b"{}")
    sound, _ = await receive(database, sound_hook.id, b"{}")
    await spoil(database, broken)
    one = worker(database)
    await drain(one)
    assert (await row(database, "autopilot_run", sound))["status"] == "running"
    tried = await row(database, "autopilot_run", broken)
    assert (tried["status"], tried["dispatch_attempts"]) == ("pending", 1)
    assert said in tried["last_dispatch_error"]
    await execute(
        database,
        """WITH gone AS (DELETE FROM dispatch_deferred RETURNING run_id, autopilot_id, trigger_id)
           INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id, claims, attempts, paced)
           SELECT run_id, autopilot_id, trigger_id, 4, 4, true FROM gone""",
    )
    await drain(one)
    ended = await row(database, "autopilot_run", broken)
    assert (ended["status"], ended["reason_code"]) == ("failed", "dispatch_exhausted")
    assert (await row(database, "webhook_delivery", delivery))["status"] == "failed"
    await assert_coherent(database)
