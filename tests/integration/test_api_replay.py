"""A delivery taken once more by hand: a new delivery, judged as of now, the original untouched (S9.11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import Answer, Api, Client, running_api
from tests.support.dispatching import assert_coherent, drain, execute, fetch, worker
from tests.support.ingress import running_ingress
from tests.support.rules import WebhookTrigger
from tests.support.tcp_proxy import tcp_proxy
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.kit.ids import uuid7
from autopilot.storage import replays, retention
from autopilot.storage.database import Conn
from autopilot.storage.replays import Inserted

BODY = b'{"action": "opened", "n": 123456789012345678901234567890, "text": "%s"}' % (b"word " * 2000)


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


@pytest.fixture
async def rule(shop: Shop) -> AutopilotId:
    return await shop.rule()


@pytest.fixture
async def hook(shop: Shop, rule: AutopilotId) -> WebhookTrigger:
    return await rules.make_webhook_trigger(shop.database, shop.setting, rule, provider="github")


@pytest.fixture
async def original(postgres_url: str, shop: Shop, hook: WebhookTrigger) -> UUID:
    """A delivery that ingress took, and that was dispatched."""
    async with running_ingress(postgres_url) as ingress:
        answer = await ingress.post(
            hook.token, BODY, {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": "k1"}
        )
    assert answer.body["status"] == "accepted"
    await drain(worker(shop.database))
    return UUID(answer.body["delivery_id"])


async def replay(client: Client, rule: AutopilotId, delivery: UUID, key: str | None = None) -> Answer:
    headers = {"Idempotency-Key": key} if key is not None else None
    return await client("POST", f"/api/autopilots/{rule}/deliveries/{delivery}/replay", headers=headers)


async def row(shop: Shop, delivery: UUID) -> dict[str, Any]:
    (found,) = await fetch(shop.database, "SELECT * FROM webhook_delivery WHERE id = $1", delivery)
    return dict(found)


async def test_a_replay_is_a_new_delivery_of_the_same_event_and_leaves_the_original_alone(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger, original: UUID
) -> None:
    """S9.11, S5.1, S5.2, WH19: linked, without a key, source webhook, nobody is the originator, the trigger's publisher answers."""
    before = await row(shop, original)
    answer = await replay(shop.owner, rule, original)
    assert answer.status == 202
    made = answer.body
    assert (made["replayed_from"], made["replayed_by"]) == (str(original), str(shop.place.owner_id))
    assert (made["status"], made["run_status"], made["dedupe_key"]) == ("queued", "pending", None)
    assert (made["event"], made["provider"], made["response_status"]) == (before["event"], "github", 202)
    assert await row(shop, original) == before
    (run,) = await fetch(
        shop.database, "SELECT * FROM autopilot_run WHERE webhook_delivery_id = $1", UUID(made["id"])
    )
    assert (run["source"], run["originator_id"]) == ("webhook", None)
    assert (run["accountable_id"], run["attribution_source"]) == (shop.place.owner_id, "trigger_owner")
    await assert_coherent(shop.database)
    await drain(worker(shop.database))
    shown = (await shop.owner("GET", f"/api/autopilots/{rule}/deliveries/{made['id']}")).body
    assert (shown["status"], shown["run_status"], shown["body"]) == ("dispatched", "running", BODY.decode())
    (task,) = await fetch(shop.database, "SELECT prompt FROM agent_task WHERE run_id = $1", run["id"])
    assert "123456789012345678901234567890" in task["prompt"]
    again = await replay(shop.owner, rule, UUID(made["id"]))
    assert (again.status, again.body["replayed_from"]) == (202, made["id"])
    await assert_coherent(shop.database)


async def test_a_key_makes_one_replay_of_a_delivery_even_at_once(
    shop: Shop, rule: AutopilotId, original: UUID
) -> None:
    """S9.11: per delivery and key, also after the rule was paused and the body is gone; without a key each request is one."""
    answers = await asyncio.gather(*(replay(shop.owner, rule, original, " k ") for _ in range(5)))
    assert {a.status for a in answers} == {202}
    assert len({a.body["id"] for a in answers}) == 1
    await drain(worker(shop.database))
    other = await replay(shop.owner, rule, UUID(answers[0].body["id"]), "k")
    assert other.body["id"] != answers[0].body["id"]
    unkeyed = [await replay(shop.owner, rule, original, key) for key in (None, "  ")]
    assert len({a.body["id"] for a in unkeyed}) == 2
    await execute(shop.database, "UPDATE autopilot SET status = 'paused', rev = rev + 1 WHERE id = $1", rule)
    await execute(shop.database, "DELETE FROM webhook_body WHERE delivery_id = $1", original)
    assert (await replay(shop.owner, rule, original, "k")).body["id"] == answers[0].body["id"]
    assert (await replay(shop.owner, rule, original, "x" * 256)).problem() == (
        422,
        "invalid_value",
        "Idempotency-Key",
    )
    assert len(await fetch(shop.database, "SELECT 1 FROM autopilot_run")) == 5
    await assert_coherent(shop.database)


async def test_what_cannot_be_replayed_says_why_and_leaves_nothing(
    shop: Shop, rule: AutopilotId, original: UUID
) -> None:
    """S9.11: rejected, still queued, rule or trigger not active; body or all of it taken by retention."""
    (runs,) = await fetch(shop.database, "SELECT run_id FROM webhook_delivery")
    changes = [
        (
            """UPDATE webhook_delivery SET status = 'rejected', signature_status = 'invalid', run_id = NULL,
                      reason_code = 'invalid_signature'""",
            (409, "delivery_rejected"),
        ),
        (
            f"""UPDATE webhook_delivery SET status = 'queued', signature_status = 'valid', reason_code = NULL,
                       run_id = '{runs["run_id"]}'""",
            (409, "delivery_queued"),
        ),
        (
            "UPDATE webhook_delivery SET status = 'dispatched'; UPDATE autopilot SET status = 'paused', rev = rev + 1",
            (409, "autopilot_paused"),
        ),
        (
            "UPDATE autopilot SET status = 'archived', archived_at = now(), rev = rev + 1",
            (409, "autopilot_archived"),
        ),
        (
            """UPDATE autopilot SET status = 'active', archived_at = NULL, rev = rev + 1;
               UPDATE autopilot_trigger SET enabled = false, rev = rev + 1""",
            (409, "trigger_disabled"),
        ),
        (
            "UPDATE autopilot_trigger SET deleted_at = now(), token_hash = NULL, rev = rev + 1",
            (409, "trigger_disabled"),
        ),
        ("DELETE FROM webhook_body", (410, "delivery_body_expired")),
        ("DELETE FROM webhook_delivery", (404, "not_found")),
    ]
    for change, refusal in changes:
        await execute(shop.database, change)
        answer = await replay(shop.owner, rule, original, "k")
        assert answer.problem()[:2] == refusal
        assert await fetch(shop.database, "SELECT 1 FROM webhook_delivery WHERE id <> $1", original) == []
        assert await fetch(shop.database, "SELECT 1 FROM dispatch_queue") == []


async def test_a_replay_is_judged_as_things_are_now(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger, original: UUID
) -> None:
    """S9.9, S4.1: it may be ignored by today's filters, or its run skipped; an ignored or failed one may start a run."""
    await execute(
        shop.database, """UPDATE autopilot_trigger SET event_filters = '[{"event": "push"}]', rev = rev + 1"""
    )
    ignored = await replay(shop.owner, rule, original)
    assert (ignored.status, ignored.body["status"], ignored.body["reason_code"]) == (
        202,
        "ignored",
        "event_filtered",
    )
    await execute(
        shop.database,
        """UPDATE autopilot_trigger SET event_filters = '[{"event": "pull_request", "actions": ["opened"]}]', rev = rev + 1""",
    )
    started = await replay(shop.owner, rule, UUID(ignored.body["id"]))
    assert (started.body["status"], started.body["run_status"]) == ("queued", "pending")
    await execute(shop.database, "UPDATE agent SET archived_at = now()")
    skipped = await replay(shop.owner, rule, original)
    assert (skipped.body["run_status"], skipped.body["reason_code"]) == ("skipped", "target_unavailable")
    await assert_coherent(shop.database)


async def test_replaying_needs_write_and_a_person(
    api: Api, shop: Shop, rule: AutopilotId, original: UUID
) -> None:
    """S6.2, S6.6, S13.6."""
    _, mia = await api.joined(shop.place, "mia")
    admin_id, admin = await api.joined(shop.place, "adam", Role.ADMIN)
    service = await api.program(shop.place, TokenKind.SERVICE)
    elsewhere = await api.place("other")
    assert (await replay(mia, rule, original)).problem()[:2] == (403, "forbidden")
    assert (await replay(service, rule, original)).problem()[:2] == (403, "wrong_token_kind")
    assert (await replay(elsewhere.owner, rule, original)).status == 404
    assert (await replay(shop.owner, await shop.rule(), original)).status == 404
    assert (await replay(shop.owner, rule, uuid7())).status == 404
    by_admin = await replay(admin, rule, original)
    assert (by_admin.status, by_admin.body["replayed_by"]) == (202, str(admin_id))


async def test_retention_takes_nothing_that_is_just_being_replayed(
    shop: Shop, rule: AutopilotId, original: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.17: the original is held from before its body is read until the replay has its own; afterwards it may go."""
    taken: list[int] = []
    insert_replay = replays.insert_replay

    async def delete_old_body() -> int:
        async with shop.database.transaction() as other:
            return await retention.delete_bodies(other, timedelta(), [original])

    async def insert_after_retention(conn: Conn, *arguments: Any) -> Inserted:
        taken.append(await delete_old_body())
        return await insert_replay(conn, *arguments)

    monkeypatch.setattr(replays, "insert_replay", insert_after_retention)
    await execute(shop.database, "UPDATE autopilot_run SET status = 'completed', completed_at = now()")
    made = await replay(shop.owner, rule, original)
    assert (made.status, taken) == (202, [0])
    await drain(worker(shop.database))
    await execute(
        shop.database,
        "UPDATE autopilot_run SET status = 'completed', completed_at = now() WHERE status = 'running'",
    )
    assert await delete_old_body() == 1
    assert len(await fetch(shop.database, "SELECT 1 FROM webhook_body")) == 1


async def test_a_replay_whose_commit_was_lost_on_the_way_is_found_again_by_its_key(
    postgres_url: str, shop: Shop, rule: AutopilotId, original: UUID
) -> None:
    """HAZARDS 13: 503, since nobody knows; asked again it is the same one."""
    token = await shop.api.token(TokenKind.PERSONAL, shop.place.owner_id)
    async with tcp_proxy(postgres_url) as proxy, running_api(proxy.url) as distant:
        owner = distant.client(token, shop.place.slug)
        assert (await owner("GET", f"/api/autopilots/{rule}")).status == 200
        proxy.cut_after(b"COMMIT")
        assert (await replay(owner, rule, original, "k")).status == 503
        (kept,) = await fetch(
            shop.database, "SELECT id, run_id FROM webhook_delivery WHERE replayed_from = $1", original
        )
        again = await replay(owner, rule, original, "k")
        assert (again.status, again.body["id"], again.body["run_id"]) == (
            202,
            str(kept["id"]),
            str(kept["run_id"]),
        )
    assert len(await fetch(shop.database, "SELECT 1 FROM webhook_delivery")) == 2
    await assert_coherent(shop.database)
