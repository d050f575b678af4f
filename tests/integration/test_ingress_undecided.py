"""Persist first: an event on which nobody can decide is kept, and answered 202, instead of being lost (S9.10, S9.15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.dispatching import assert_coherent, execute, fetch
from tests.support.ingress import Answer, Ingress, running_ingress, signed
from tests.support.rules import Setting, WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.kit import points
from autopilot.storage.database import Database

SECRET = "a signing secret of a decent length"
BODY = b'{"ref": "main"}'


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await make_setting(database)


@pytest.fixture
async def trigger(database: Database, setting: Setting) -> WebhookTrigger:
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, provider="github", secret=SECRET)


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


async def push(ingress: Ingress, trigger: WebhookTrigger, delivery: str, event: str = "push") -> Answer:
    headers = signed(SECRET, BODY, X_GitHub_Event=event, X_GitHub_Delivery=delivery)
    return await ingress.post(trigger.token, BODY, headers)


@pytest.mark.parametrize("point", ["ingress.before_facts", "ingress.admit", "ingress.decide"])
async def test_an_event_that_cannot_be_decided_is_kept_with_an_entry_of_its_own(
    ingress: Ingress, database: Database, trigger: WebhookTrigger, point: str
) -> None:
    """S9.10: wherever admission breaks; the same event again is a duplicate, and the next one is decided as ever."""
    with points.armed(point, "raise", error=RuntimeError("a bug")):
        first = await push(ingress, trigger, "d-1")
        again = await push(ingress, trigger, "d-1")
        forged = await ingress.post(trigger.token, BODY, {"X-Hub-Signature-256": "sha256=00"})
    assert (first.status, first.body["status"]) == (202, "queued")
    assert "run_id" not in first.body
    assert again.body == {**first.body, "status": "duplicate"}
    assert forged.status == 401
    (kept,) = await fetch(
        database,
        """SELECT d.status, d.run_id, d.response_status, d.response_body, d.attempt_count, b.body, q.delivery_id = d.id AS waits,
                  q.autopilot_id = d.autopilot_id AND q.trigger_id = d.trigger_id AS named, q.size
             FROM webhook_delivery d JOIN webhook_body b ON b.delivery_id = d.id JOIN dispatch_queue q ON true
            WHERE d.status <> 'rejected'""",
    )
    assert dict(kept) == {
        "status": "queued",
        "run_id": None,
        "response_status": 202,
        "response_body": first.body,
        "attempt_count": 2,
        "body": BODY,
        "waits": True,
        "named": True,
        "size": len(BODY),
    }
    assert await fetch(database, "SELECT 1 FROM autopilot_run") == []
    assert (await push(ingress, trigger, "d-2")).body["status"] == "accepted"
    await assert_coherent(database)


async def test_facts_that_only_a_newer_release_understands_cost_only_their_own_rule_its_decision(
    ingress: Ingress, database: Database, setting: Setting, trigger: WebhookTrigger
) -> None:
    """S9.10: read together with the facts of others, which are decided."""
    other = await make_autopilot(database, setting)
    constraint = await fetch(
        database,
        "SELECT conname FROM pg_constraint WHERE conrelid = 'autopilot'::regclass AND conname LIKE '%overlap%'",
    )
    for row in constraint:
        await execute(database, f"ALTER TABLE autopilot DROP CONSTRAINT {row['conname']}")
    hook = await make_webhook_trigger(database, setting, other.id)
    await execute(
        database,
        "UPDATE autopilot SET overlap_policy = 'of_a_newer_release', rev = rev + 1 WHERE id = $1",
        trigger.trigger.autopilot_id,
    )
    with points.armed("ingress.before_facts", "block") as point:
        both = [
            asyncio.create_task(push(ingress, trigger, "d-1")),
            asyncio.create_task(ingress.post(hook.token)),
        ]
        await point.wait_reached()
        point.release()
        unknown, known = await asyncio.gather(*both)
    assert (unknown.status, unknown.body["status"]) == (202, "queued")
    assert known.body["status"] == "accepted"


async def test_facts_behind_a_strangers_lock_are_not_waited_for(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.10: the provider has its answer while somebody alters a table that only admission reads."""
    async with database.transaction() as conn:
        await conn.execute("LOCK TABLE agent_share IN ACCESS EXCLUSIVE MODE")
        kept = await push(ingress, trigger, "d-1")
    assert (kept.status, kept.body["status"]) == (202, "queued")
    assert (await push(ingress, trigger, "d-2")).body["status"] == "accepted"


async def test_an_undecided_event_does_not_outlive_its_url(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 12, S9.13: the trigger's revision is joined all the same; the rule's is left to the dispatcher."""
    for change, status in (
        ("UPDATE autopilot SET title = 'new', rev = rev + 1", 202),
        ("UPDATE autopilot_trigger SET token_hash = 'new', rev = rev + 1", 404),
    ):
        with (
            points.armed("ingress.admit", "raise"),
            points.armed("ingress.before_write", "block") as point,
        ):
            posting = asyncio.create_task(push(ingress, trigger, f"d-{status}"))
            await point.wait_reached()
            await execute(database, change)
            point.release()
            assert (await posting).status == status


async def test_an_event_whose_run_the_database_refuses_is_kept_without_it(
    ingress: Ingress, database: Database, setting: Setting, trigger: WebhookTrigger
) -> None:
    """S9.10: the event is not lost with its run, and its neighbours have their own."""
    other = await make_autopilot(database, setting)
    hook = await make_webhook_trigger(database, setting, other.id)
    await execute(
        database,
        f"ALTER TABLE autopilot_run ADD CONSTRAINT no_run_of_this CHECK (autopilot_id <> '{trigger.trigger.autopilot_id}')",
    )
    answers = await asyncio.gather(
        push(ingress, trigger, "d-1"), *(ingress.post(hook.token) for _ in range(5))
    )
    assert [(a.status, a.body["status"]) for a in answers] == [(202, "queued")] + [(200, "accepted")] * 5
    assert (await push(ingress, trigger, "d-1")).body["status"] == "duplicate"
    await assert_coherent(database)
