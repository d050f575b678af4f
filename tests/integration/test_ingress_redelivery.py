"""The sender's own redelivery: it runs where nothing came of the first, and is a duplicate where something did (S9.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.dispatching import assert_coherent, drain, execute, fetch, worker
from tests.support.ingress import Answer, Ingress, running_ingress, signed
from tests.support.rules import WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.domain.states import ExecutionMode
from autopilot.kit import points
from autopilot.storage.database import Database

SECRET = "a signing secret of a decent length"
BODY = b'{"ref": "main"}'


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    rule = await make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    return await make_webhook_trigger(database, setting, rule.id, provider="github", secret=SECRET)


async def push(ingress: Ingress, trigger: WebhookTrigger, secret: str = SECRET) -> Answer:
    """The same delivery of GitHub's, as its button Redeliver sends it: with the same id."""
    headers = signed(secret, BODY, X_GitHub_Event="push", X_GitHub_Delivery="d-1")
    return await ingress.post(trigger.token, BODY, headers)


async def deliveries(database: Database) -> list[dict[str, Any]]:
    rows = await fetch(
        database,
        """SELECT d.status, d.reason_code, r.status AS run FROM webhook_delivery d LEFT JOIN autopilot_run r ON r.id = d.run_id
            ORDER BY d.id""",
    )
    return [dict(row) for row in rows]


@pytest.mark.parametrize(
    ("broken", "first", "repaired"),
    [
        (
            "UPDATE autopilot SET status = 'paused', rev = rev + 1",
            ("ignored", "autopilot_paused", None),
            "UPDATE autopilot SET status = 'active', rev = rev + 1",
        ),
        (
            "UPDATE autopilot_trigger SET enabled = false, rev = rev + 1",
            ("ignored", "trigger_disabled", None),
            "UPDATE autopilot_trigger SET enabled = true, rev = rev + 1",
        ),
        (
            """UPDATE autopilot_trigger SET event_filters = '[{"event": "issues"}]', rev = rev + 1""",
            ("ignored", "event_filtered", None),
            "UPDATE autopilot_trigger SET event_filters = NULL, rev = rev + 1",
        ),
        (
            "UPDATE runtime_heartbeat SET seen_at = now() - interval '1 hour'",
            ("dispatched", "runtime_offline", "skipped"),
            "UPDATE runtime_heartbeat SET seen_at = now()",
        ),
    ],
)
async def test_what_was_held_back_runs_when_it_is_sent_again(
    ingress: Ingress,
    database: Database,
    trigger: WebhookTrigger,
    broken: str,
    first: tuple[str, str, str | None],
    repaired: str,
) -> None:
    """WH13: after a pause, a disabled trigger, a filter, a skipped run; each is a delivery of its own."""
    await execute(database, broken)
    for _ in range(2):  # as long as it is broken, each is a delivery that says why
        assert (await push(ingress, trigger)).body["reason_code"] == first[1]
    await execute(database, repaired)
    assert (await push(ingress, trigger)).body["status"] == "accepted"
    assert (await push(ingress, trigger)).body["status"] == "duplicate"
    held_back = {"status": first[0], "reason_code": first[1], "run": first[2]}
    accepted = {"status": "queued", "reason_code": None, "run": "pending"}
    assert await deliveries(database) == [held_back, held_back, accepted]
    await assert_coherent(database)


async def test_a_rejected_one_runs_when_it_is_sent_again_with_the_right_signature(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """WH13, S9.6: also a forger cannot take the id of an event that is still to come."""
    assert (await push(ingress, trigger, "another secret altogether")).status == 401
    assert (await push(ingress, trigger)).body["status"] == "accepted"
    assert (await push(ingress, trigger, "another secret altogether")).status == 401
    assert [row["status"] for row in await deliveries(database)] == ["rejected", "queued", "rejected"]
    await assert_coherent(database)


async def test_one_whose_run_never_started_runs_when_it_is_sent_again(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """WH2, WH13: dispatch skipped it, dispatch failed; and each delivery says what became of it."""
    assert (await push(ingress, trigger)).body["status"] == "accepted"
    await execute(database, "UPDATE runtime_heartbeat SET seen_at = now() - interval '1 hour'")
    await drain(worker(database))
    await execute(database, "UPDATE runtime_heartbeat SET seen_at = now()")
    assert (await push(ingress, trigger)).body["status"] == "accepted"
    await execute(database, "UPDATE dispatch_queue SET attempts = 4, claims = 4")
    with points.armed("dispatcher.before_commit", "raise", error=RuntimeError("poison")):
        await drain(worker(database))
    assert (await push(ingress, trigger)).body["status"] == "accepted"
    await drain(worker(database))
    assert (await push(ingress, trigger)).body["status"] == "duplicate"
    assert await deliveries(database) == [
        {"status": "dispatched", "reason_code": "runtime_offline", "run": "skipped"},
        {"status": "failed", "reason_code": "dispatch_exhausted", "run": "failed"},
        {"status": "dispatched", "reason_code": None, "run": "running"},
    ]
    await assert_coherent(database)


async def test_what_was_done_is_not_done_again_even_where_the_agent_failed(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """WH13, WH19: that is what a replay is for."""
    first = await push(ingress, trigger)
    await drain(worker(database))
    await execute(
        database,
        """UPDATE agent_task SET status = 'failed', error = 'x', failure_kind = 'agent', finished_at = now();
           UPDATE autopilot_run SET status = 'failed', completed_at = now(), reason_code = 'task_failed', failure_reason = 'x'""",
    )
    again = await push(ingress, trigger)
    assert again.body == {**first.body, "status": "duplicate"}
    assert len(await fetch(database, "SELECT 1 FROM autopilot_run")) == 1
