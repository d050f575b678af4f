"""Deliveries kept undecided are finished by the dispatcher, once, as things stand then (S9.10, S9.15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.dispatching import assert_coherent, drain, execute, fetch, worker
from tests.support.ingress import Ingress, running_ingress
from tests.support.rules import Setting, WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.dispatcher.admissions import Admissions
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.kit import points
from autopilot.kit.config import Secret
from autopilot.kit.ids import random_token
from autopilot.storage import queue, undecided
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention, DatabaseUnavailable

BODY = b'{"action": "opened"}'


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test", settings={"lock_timeout": "15000"}) as database:
        yield database


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await make_setting(database)


@pytest.fixture
async def trigger(database: Database, setting: Setting) -> WebhookTrigger:
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id)


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


def admissions(database: Database, woken: list[bool] | None = None, **settings: Any) -> Admissions:
    config = DispatcherConfig(database_url=Secret("postgresql://unused"))
    news: list[bool] = [] if woken is None else woken
    return Admissions(database, msgspec.structs.replace(config, **settings), wake=lambda: news.append(True))


async def keep(ingress: Ingress, trigger: WebhookTrigger, key: str = "", body: bytes = BODY) -> str:
    """An event that ingress could not decide on; its delivery."""
    with points.armed("ingress.admit", "raise"):
        answer = await ingress.post(
            trigger.token, body, {"Idempotency-Key": key, "X-GitHub-Event": "pull_request"}
        )
    assert answer.status == 202, answer.body
    return str(answer.body["delivery_id"])


async def delivery(database: Database, delivery_id: str) -> dict[str, Any]:
    (found,) = await fetch(
        database,
        """SELECT d.status, d.reason_code, d.error, r.status AS run, r.reason_code AS why, r.accountable_id, r.attribution_source,
                  EXISTS (SELECT 1 FROM webhook_dedupe s WHERE s.delivery_id = d.id) AS slot
             FROM webhook_delivery d LEFT JOIN autopilot_run r ON r.id = d.run_id WHERE d.id = $1""",
        delivery_id,
    )
    return dict(found)


async def test_an_undecided_delivery_becomes_a_run_like_any_other(
    ingress: Ingress, database: Database, setting: Setting, trigger: WebhookTrigger
) -> None:
    """S9.10, S9.15, S5.2: attributed to its trigger, its key kept; a later repeat is a duplicate that names the run."""
    woken: list[bool] = []
    kept = await keep(ingress, trigger, "k")
    assert await admissions(database, woken).step()
    assert woken == [True]
    found = await delivery(database, kept)
    assert found == {
        "status": "queued",
        "reason_code": None,
        "error": None,
        "run": "pending",
        "why": None,
        "accountable_id": setting.owner_id,
        "attribution_source": "trigger_owner",
        "slot": True,
    }
    repeat = await ingress.post(trigger.token, BODY, {"Idempotency-Key": "k"})
    (run,) = await fetch(database, "SELECT id FROM autopilot_run")
    assert (repeat.body["status"], repeat.body["run_id"]) == ("duplicate", str(run["id"]))
    await assert_coherent(database)
    await drain(worker(database))
    assert (await delivery(database, kept))["status"] == "dispatched"
    assert not await admissions(database).step()
    await assert_coherent(database)


@pytest.mark.parametrize(
    ("change", "status", "code", "run"),
    [
        ("UPDATE autopilot SET status = 'paused', rev = rev + 1", "ignored", "autopilot_paused", None),
        ("UPDATE autopilot_trigger SET enabled = false, rev = rev + 1", "ignored", "trigger_disabled", None),
        (
            "UPDATE autopilot_trigger SET enabled = false, deleted_at = now(), token_hash = NULL, rev = rev + 1",
            "ignored",
            "trigger_disabled",
            None,
        ),
        (
            """UPDATE autopilot_trigger SET event_filters = '[{"event": "push"}]', rev = rev + 1""",
            "ignored",
            "event_filtered",
            None,
        ),
        ("UPDATE agent SET archived_at = now()", "dispatched", "target_unavailable", "skipped"),
        ("UPDATE webhook_delivery SET workspace_id = gen_random_uuid()", "ignored", "trigger_disabled", None),
    ],
)
async def test_what_holds_is_what_is_true_when_it_is_decided(
    ingress: Ingress,
    database: Database,
    trigger: WebhookTrigger,
    change: str,
    status: str,
    code: str,
    run: str | None,
) -> None:
    """S9.10, S9.2: trigger, rule, filter, ownership and target are judged then and only then; what starts nothing gives its key back (S9.7)."""
    kept = await keep(ingress, trigger, "k")
    await execute(database, change)
    assert await admissions(database).step()
    found = await delivery(database, kept)
    assert (found["status"], found["reason_code"], found["run"], found["slot"]) == (status, code, run, False)
    await assert_coherent(database)


async def test_one_poisonous_delivery_is_tried_five_times_and_harms_no_other(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S10.2: after 2, 8, 32 and 128 s; then failed internal_error with its last error, and its key is free again (S9.7)."""
    before = await keep(ingress, trigger)
    poison = await keep(ingress, trigger, "k")
    after = await keep(ingress, trigger)
    await execute(database, "DELETE FROM webhook_body WHERE delivery_id = $1", poison)
    one = admissions(database)
    for delay_s in (2, 8, 32, 128, None):
        ((began_at,),) = await fetch(database, "SELECT clock_timestamp()")
        while await one.step():
            pass
        deferred = await fetch(
            database, "SELECT available_at, clock_timestamp() AS now FROM dispatch_deferred"
        )
        if delay_s is None:
            assert deferred == []
        else:
            (retry,), delay = deferred, timedelta(seconds=delay_s)
            assert began_at + delay <= retry["available_at"] <= retry["now"] + delay
            assert (await delivery(database, poison))["error"].startswith("The body of the delivery is gone")
        assert (
            (await delivery(database, before))["run"] == (await delivery(database, after))["run"] == "pending"
        )
        await assert_coherent(database)
        await execute(database, "UPDATE dispatch_deferred SET available_at = clock_timestamp()")
        async with database.connection() as conn:
            await queue.move_due(conn, limit=10)
    found = await delivery(database, poison)
    assert (found["status"], found["reason_code"], found["run"]) == ("failed", "internal_error", None)
    assert found["error"].startswith("admission failed 5 times: The body of the delivery is gone")
    assert (
        found["slot"],
        await fetch(database, "SELECT 1 FROM dispatch_queue WHERE delivery_id IS NOT NULL"),
    ) == (
        False,
        [],
    )
    again = await ingress.post(trigger.token, BODY, {"Idempotency-Key": "k"})
    assert again.body["status"] == "accepted"
    await assert_coherent(database)


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone"), Contention("deadlock")])
async def test_trouble_of_the_infrastructure_costs_no_attempt(
    ingress: Ingress, database: Database, trigger: WebhookTrigger, error: InfrastructureError
) -> None:
    """S10.2, HAZARDS 17: an outage keeps the batch under its token; contention leaves it to the end of the lease."""
    kept = await keep(ingress, trigger)
    one = admissions(database)
    with points.armed("admissions.before_commit", "raise", error=error):
        if isinstance(error, Contention):
            assert await one.step()
        else:
            with pytest.raises(DatabaseUnavailable):
                await one.step()
    (entry,) = await fetch(database, "SELECT attempts, claims, lease_until FROM dispatch_queue")
    assert (entry["attempts"], entry["claims"]) == (0, 1)
    if isinstance(error, Contention):
        assert not await one.step()
        await execute(
            database, "UPDATE dispatch_queue SET lease_until = clock_timestamp() - interval '1 second'"
        )
    assert await one.step()
    assert (await delivery(database, kept))["run"] == "pending"


async def test_a_commit_whose_answer_was_lost_is_not_done_twice(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 13: the entry went with the commit, so the batch in hand finds nothing to do."""
    await keep(ingress, trigger)
    one = admissions(database)
    with (
        points.armed("admissions.after_commit", "raise", error=DatabaseUnavailable("gone")),
        pytest.raises(DatabaseUnavailable),
    ):
        await one.step()
    assert await one.step()
    assert len(await fetch(database, "SELECT 1 FROM autopilot_run")) == 1
    await assert_coherent(database)


async def test_a_lost_lease_decides_nothing_and_a_stop_gives_the_batch_back(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S10.1: the token guards the end; HAZARDS 17."""
    await keep(ingress, trigger)
    async with admissions(database) as slow:
        with (
            points.armed("admissions.after_claim", "raise", error=DatabaseUnavailable("gone")),
            pytest.raises(DatabaseUnavailable),
        ):
            await slow.step()
    (given_back,) = await fetch(database, "SELECT claims, lease_token FROM dispatch_queue")
    assert dict(given_back) == {"claims": 0, "lease_token": None}
    with points.armed("admissions.after_claim", "block") as point:
        slow = admissions(database)
        deciding = asyncio.create_task(slow.step())
        await point.wait_reached()
        await execute(
            database, "UPDATE dispatch_queue SET lease_until = clock_timestamp() - interval '1 second'"
        )
        heir = asyncio.create_task(admissions(database).step())
        while point.hits < 2:
            await asyncio.sleep(0)
        point.release()
        await asyncio.gather(deciding, heir)
    assert len(await fetch(database, "SELECT id FROM autopilot_run")) == 1
    await assert_coherent(database)


async def test_a_delivery_that_kills_whoever_claims_it_comes_alone_and_is_ended(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 16: three claims without an outcome, and its neighbours go without it; ten, and it is failed."""
    deadly, good = await keep(ingress, trigger), await keep(ingress, trigger)
    await execute(database, "UPDATE dispatch_queue SET claims = 3 WHERE delivery_id = $1", deadly)
    async with database.connection() as conn:
        token = LeaseToken(random_token())
        alone = await undecided.claim(conn, limit=10, max_bytes=1 << 20, lease_s=30, token=token)
        others = await undecided.claim(conn, limit=10, max_bytes=1 << 20, lease_s=30, token=token)
    assert ([str(e.delivery_id) for e in alone], [str(e.delivery_id) for e in others]) == ([deadly], [good])
    await execute(
        database,
        "UPDATE dispatch_queue SET claims = CASE delivery_id WHEN $1 THEN 10 ELSE 0 END, lease_token = NULL, lease_until = NULL",
        deadly,
    )
    one = admissions(database)
    while await one.step():
        pass
    assert (await delivery(database, good))["run"] == "pending"
    assert (await delivery(database, deadly))["reason_code"] == "internal_error"
    await assert_coherent(database)


async def test_runs_and_undecided_deliveries_are_claimed_apart(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.15: neither waits behind the other, whichever are the older."""
    runs = [await ingress.post(trigger.token) for _ in range(3)]
    kept = [await keep(ingress, trigger) for _ in range(3)]
    runs += [await ingress.post(trigger.token) for _ in range(3)]
    one = admissions(database, dispatch_batch_size=2)
    assert await one.step()
    assert [(await delivery(database, k))["run"] for k in kept] == ["pending", "pending", None]
    await drain(worker(database, dispatch_batch_size=1))
    dispatched = await fetch(
        database, "SELECT id FROM webhook_delivery WHERE status = 'dispatched' ORDER BY id"
    )
    assert {str(row["id"]) for row in dispatched} == {*kept[:2], *(run.body["delivery_id"] for run in runs)}
    assert (await delivery(database, kept[2]))["status"] == "queued"
    await assert_coherent(database)


async def test_an_edit_waits_for_the_decision_or_is_seen_by_it(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 12: a pause cannot come between the facts and the run."""
    kept = await keep(ingress, trigger)
    with points.armed("admissions.before_commit", "block") as point:
        deciding = asyncio.create_task(admissions(database).step())
        await point.wait_reached()
        with pytest.raises(Contention):
            await execute(database, "SELECT 1 FROM autopilot FOR NO KEY UPDATE NOWAIT")
        with pytest.raises(Contention):
            await execute(database, "SELECT 1 FROM autopilot_trigger FOR NO KEY UPDATE NOWAIT")
        point.release()
        await deciding
    assert (await delivery(database, kept))["run"] == "pending"
