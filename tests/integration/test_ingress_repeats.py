"""One event, one run: repeats, races and edits between look-up and write (S9.7, S1.1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.dispatching import assert_coherent
from tests.support.ingress import Ingress, running_ingress, signed
from tests.support.rules import (
    VAULT,
    Setting,
    WebhookTrigger,
    make_autopilot,
    make_setting,
    make_webhook_trigger,
)
from tests.support.tcp_proxy import tcp_proxy

from autopilot.bus.connection import Bus
from autopilot.kit import points
from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable

SECRET = "a signing secret of a decent length"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await make_setting(database)


@pytest.fixture
async def trigger(database: Database, setting: Setting) -> WebhookTrigger:
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, provider="github", secret=SECRET)


def push(delivery_id: str, body: bytes = b'{"ref": "main"}') -> tuple[bytes, dict[str, str]]:
    return body, signed(SECRET, body, X_GitHub_Event="push", X_GitHub_Delivery=delivery_id)


async def rows(database: Database, sql: str, *arguments: object) -> list[dict[str, Any]]:
    async with database.connection() as conn:
        return [dict(row) for row in await conn.fetch(sql, *arguments)]


async def execute(database: Database, sql: str) -> None:
    async with database.connection() as conn:
        await conn.execute(sql)


async def test_fifty_equal_posts_at_once_over_two_replicas_make_one_run(
    postgres_url: str, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.7, WH11, WH12: one accepted, 49 duplicates of it, attempt_count 50."""
    async with running_ingress(postgres_url) as one, running_ingress(postgres_url) as two:
        answers = await asyncio.gather(
            *((one, two)[n % 2].post(trigger.token, *push("d-1")) for n in range(50))
        )
    assert Counter((a.status, a.body["status"]) for a in answers) == {
        (200, "accepted"): 1,
        (200, "duplicate"): 49,
    }
    assert len({(a.body["delivery_id"], a.body["run_id"]) for a in answers}) == 1
    (kept,) = await rows(
        database, "SELECT attempt_count, last_attempt_at > received_at AS later FROM webhook_delivery"
    )
    assert kept == {"attempt_count": 50, "later": True}
    assert len(await rows(database, "SELECT id FROM autopilot_run")) == 1
    await assert_coherent(database)


async def test_a_hundred_different_posts_at_once_are_all_accepted(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """WH1: 100 signed deliveries at once, 100 stored, each with its run and its own bytes."""
    answers = await asyncio.gather(
        *(ingress.post(trigger.token, *push(f"d-{n}", b'{"n": %d}' % n)) for n in range(100))
    )
    assert {a.body["status"] for a in answers} == {"accepted"}
    kept = await rows(
        database,
        """SELECT d.dedupe_key, b.body, r.id FROM webhook_delivery d JOIN webhook_body b ON b.delivery_id = d.id
             JOIN autopilot_run r ON r.webhook_delivery_id = d.id JOIN dispatch_queue q ON q.run_id = r.id""",
    )
    assert {(k["dedupe_key"], k["body"]) for k in kept} == {(f"d-{n}", b'{"n": %d}' % n) for n in range(100)}
    assert {str(k["id"]) for k in kept} == {a.body["run_id"] for a in answers}
    await assert_coherent(database)


async def test_a_duplicate_names_the_original_and_counts(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.7, S9.8; the id of the provider decides, whatever the body."""
    first = await ingress.post(trigger.token, *push("d-1"))
    again = await ingress.post(trigger.token, *push("d-1", b'{"ref": "other"}'))
    assert again.body == {**first.body, "status": "duplicate"}
    assert await rows(database, "SELECT attempt_count FROM webhook_delivery") == [{"attempt_count": 2}]


async def test_a_repeat_is_a_duplicate_even_where_a_first_one_would_be_ignored(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.2: duplicate comes before trigger, autopilot and filter."""
    first = await ingress.post(trigger.token, *push("d-1"))
    await execute(database, "UPDATE autopilot SET status = 'paused', rev = rev + 1")
    again = await ingress.post(trigger.token, *push("d-1"))
    assert (again.body["status"], again.body["delivery_id"]) == ("duplicate", first.body["delivery_id"])
    assert (await ingress.post(trigger.token, *push("d-2"))).body["status"] == "ignored"


async def test_an_idempotency_key_with_another_body_is_422(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.7, WH10: and it is trimmed, and blank is none."""
    autopilot = await make_autopilot(database, setting)
    generic = await make_webhook_trigger(database, setting, autopilot.id)
    first = await ingress.post(generic.token, b'{"a": 1}', {"Idempotency-Key": "k"})
    again = await ingress.post(generic.token, b'{"a": 1}', {"Idempotency-Key": " k "})
    assert (again.body["status"], again.body["run_id"]) == ("duplicate", first.body["run_id"])
    other = await ingress.post(generic.token, b'{"a": 2}', {"Idempotency-Key": "k"})
    assert (other.status, other.body["code"]) == (422, "idempotency_key_reused")
    race = await asyncio.gather(
        *(ingress.post(generic.token, b'{"b": %d}' % n, {"Idempotency-Key": "race"}) for n in range(5))
    )
    assert sorted(a.status for a in race) == [200, 422, 422, 422, 422]
    blank = [await ingress.post(generic.token, b"{}", {"Idempotency-Key": "  "}) for _ in range(2)]
    assert [a.body["status"] for a in blank] == ["accepted", "accepted"]
    assert [
        r["attempt_count"]
        for r in await rows(database, "SELECT attempt_count FROM webhook_delivery ORDER BY id")
    ] == [2, 1, 1, 1]


async def test_a_key_that_came_as_a_delivery_id_first_is_a_repeat_whatever_its_body(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.7: only an Idempotency-Key promises that its body stays the same, so only its digest is kept."""
    first = await ingress.post(trigger.token, *push("d-1"))
    body, headers = push("d-1")
    key = headers.pop("X-GitHub-Delivery")
    headers = signed(SECRET, body + b" ") | {"Idempotency-Key": key}
    again = await ingress.post(trigger.token, body + b" ", headers)
    assert (again.body["status"], again.body["run_id"]) == ("duplicate", first.body["run_id"])


async def test_keys_are_of_their_trigger(ingress: Ingress, database: Database, setting: Setting) -> None:
    """DU12: the same key on two triggers is two events."""
    autopilot = await make_autopilot(database, setting)
    hooks = [await make_webhook_trigger(database, setting, autopilot.id) for _ in range(2)]
    answers = [await ingress.post(hook.token, b"{}", {"Idempotency-Key": "k"}) for hook in hooks]
    assert [a.body["status"] for a in answers] == ["accepted", "accepted"]


async def _post_held_before_the_write(
    ingress: Ingress, database: Database, trigger: WebhookTrigger, change: str
) -> Any:
    with points.armed("ingress.before_write", "block") as point:
        posting = asyncio.create_task(ingress.post(trigger.token, *push("d-1")))
        await point.wait_reached()
        await execute(database, change)
        point.release()
        return await posting


@pytest.mark.parametrize(
    ("change", "status", "body"),
    [
        ("UPDATE autopilot SET status = 'paused', rev = rev + 1", 200, ("ignored", "autopilot_paused")),
        ("UPDATE autopilot_trigger SET enabled = false, rev = rev + 1", 200, ("ignored", "trigger_disabled")),
        ("UPDATE autopilot_trigger SET token_hash = 'new', rev = rev + 1", 404, (404, None)),
        (
            "UPDATE autopilot_trigger SET enabled = false, deleted_at = now(), token_hash = NULL, rev = rev + 1",
            404,
            (404, None),
        ),
        ("UPDATE autopilot SET title = 'new', rev = rev + 1", 200, ("accepted", None)),
    ],
)
async def test_what_changes_between_look_up_and_write_is_decided_again(
    ingress: Ingress,
    database: Database,
    trigger: WebhookTrigger,
    change: str,
    status: int,
    body: tuple[object, str | None],
) -> None:
    """HAZARDS 12: the write joins the revisions that were judged."""
    answer = await _post_held_before_the_write(ingress, database, trigger, change)
    assert answer.status == status
    assert (answer.body["status"], answer.body.get("reason_code")) == body
    assert len(await rows(database, "SELECT id FROM webhook_delivery")) == (0 if status == 404 else 1)
    await assert_coherent(database)


async def test_a_secret_that_is_replaced_between_look_up_and_write_counts_at_once(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 12, S9.6: what was signed with the old secret alone is rejected."""
    new = VAULT.encrypt("another signing secret, as long").hex()
    answer = await _post_held_before_the_write(
        ingress, database, trigger, f"UPDATE autopilot_trigger SET secret_enc = '\\x{new}', rev = rev + 1"
    )
    assert (answer.status, answer.body["reason_code"]) == (401, "invalid_signature")


async def test_a_rule_that_changes_without_end_is_put_off(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """Three decisions, then 503: no request loops for ever."""
    await execute(
        database,
        """CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
           CREATE TRIGGER busy BEFORE INSERT ON webhook_dedupe FOR EACH ROW EXECUTE FUNCTION busy()""",
    )
    answer = await ingress.post(trigger.token, *push("d-1"))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")


async def test_a_commit_whose_answer_was_lost_is_found_by_its_id(
    ingress: Ingress, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 13: the retry writes nothing twice and answers what it is: accepted, not a duplicate of itself."""
    lost = DatabaseUnavailable("the answer to COMMIT never came")
    with points.armed("ingress.after_write", "raise", on_hit=1, error=lost) as point:
        answers = await asyncio.gather(
            ingress.post(trigger.token, *push("d-1")),
            ingress.post(trigger.token, b"{}", {"X-GitHub-Event": "push"}),
        )
        assert point.hits >= 2
    assert [(a.status, a.body["status"]) for a in answers] == [(200, "accepted"), (401, "rejected")]
    kept = await rows(
        database, "SELECT id, attempt_count, response_body FROM webhook_delivery ORDER BY status"
    )
    assert [(k["attempt_count"], k["response_body"]) for k in kept] == [(1, a.body) for a in answers]
    assert len(await rows(database, "SELECT run_id FROM dispatch_queue")) == 1
    await assert_coherent(database)


async def test_a_commit_whose_answer_is_lost_on_the_way_is_found_by_its_id(
    postgres_url: str, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 13 with a real connection: Postgres has it, ingress does not know; the retry finds its own."""
    committed = "SELECT id, attempt_count FROM webhook_delivery WHERE dedupe_key = 'the-lost-one'"
    async with tcp_proxy(postgres_url) as proxy, running_ingress(proxy.url) as ingress:
        assert (await ingress.post(trigger.token, *push("warm"))).body["status"] == "accepted"
        proxy.cut_after(b"the-lost-one")
        with points.armed("ingress.before_write", "block", on_hit=2) as retry:
            posting = asyncio.create_task(ingress.post(trigger.token, *push("the-lost-one")))
            await retry.wait_reached()
            (kept,) = await rows(database, committed)
            retry.release()
            answer = await posting
        assert (answer.body["status"], answer.body["delivery_id"]) == ("accepted", str(kept["id"]))
        assert await rows(database, committed) == [{"id": kept["id"], "attempt_count": 1}]
        again = await ingress.post(trigger.token, *push("the-lost-one"))
    assert again.body == {**answer.body, "status": "duplicate"}
    assert len(await rows(database, "SELECT id FROM autopilot_run")) == 2
    await assert_coherent(database)


async def test_repeats_behind_a_strangers_lock_hold_up_nobody(
    postgres_url: str, database: Database, trigger: WebhookTrigger
) -> None:
    """HAZARDS 11: the stuck ones leave their batch, in which one wait for each would outlast an answer's 9 s."""
    keys = [f"stuck-{n // 6}" if n % 6 == 0 else f"free-{n}" for n in range(48)]
    # The stuck ones are to be stuck for as long as an answer may take.
    async with running_ingress(postgres_url, ingress_hold_s=9.0) as ingress, database.connection() as conn:
        blocker = conn.transaction()
        await blocker.start()
        await conn.executemany(
            "INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id) VALUES ($1, $2, gen_random_uuid())",
            [(trigger.id, key) for key in keys if key.startswith("stuck")],
        )
        posts = {key: asyncio.create_task(ingress.post(trigger.token, *push(key))) for key in keys}
        free = await asyncio.gather(*(post for key, post in posts.items() if key.startswith("free")))
        assert {a.body["status"] for a in free} == {"accepted"}
        assert not any(post.done() for key, post in posts.items() if key.startswith("stuck"))
        await blocker.rollback()
    assert {(await post).body["status"] for post in posts.values()} == {"accepted"}
    await assert_coherent(database)


async def test_the_dispatcher_is_woken_for_news_and_for_repeats_that_still_wait(
    postgres_url: str, database: Database, trigger: WebhookTrigger
) -> None:
    """S9.7, S1.2: once a batch; not for what starts nothing."""
    woken: list[str] = []

    def note(_bus: Bus, subject: str) -> None:
        woken.append(subject)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bus, "wake", note)
        async with running_ingress(postgres_url) as ingress:
            first = await ingress.post(trigger.token, *push("d-1"))
            await ingress.post(trigger.token, *push("d-1"))
            assert woken == ["autopilot.wake.dispatch"] * 2
            await ingress.post(trigger.token, b"{}", {"X-GitHub-Delivery": "unsigned"})
            await execute(
                database,
                """UPDATE autopilot_run SET status = 'skipped', reason_code = 'already_active', failure_reason = 'x',
                          completed_at = clock_timestamp();
                   UPDATE webhook_delivery SET status = 'dispatched' WHERE status = 'queued'""",
            )
            repeat = await ingress.post(trigger.token, *push("d-1"))
            assert repeat.body == {**first.body, "status": "duplicate"}
            assert len(woken) == 2
