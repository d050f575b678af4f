"""Explain: why a webhook that was answered made no run, or made two (S13.3), asked after real requests to ingress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import rules
from tests.support.api import running_api
from tests.support.dispatching import drain, execute, worker
from tests.support.explaining import check, codes, explained, fact
from tests.support.ingress import Ingress, running_ingress, signed
from tests.support.rules import WebhookTrigger
from tests.support.work import Shop, make_shop

from autopilot.dispatcher.admissions import Admissions
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.domain.ids import AutopilotId
from autopilot.kit import points
from autopilot.kit.config import Secret

SECRET = "a signing secret of a decent length"
BODY = b'{"ref": "main"}'


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    async with running_api(postgres_url) as api:
        yield await make_shop(api)


@pytest.fixture
async def ingress(postgres_url: str) -> AsyncIterator[Ingress]:
    async with running_ingress(postgres_url) as ingress:
        yield ingress


@pytest.fixture
async def rule(shop: Shop) -> AutopilotId:
    return await shop.rule()


@pytest.fixture
async def hook(shop: Shop, rule: AutopilotId) -> WebhookTrigger:
    return await rules.make_webhook_trigger(shop.database, shop.setting, rule, provider="github")


async def push(ingress: Ingress, hook: WebhookTrigger, key: str | None = None, event: str = "push") -> Any:
    """The id of the delivery that a push makes, or that it repeats."""
    headers = {"X-GitHub-Event": event} | ({"X-GitHub-Delivery": key} if key is not None else {})
    answer = await ingress.post(hook.token, BODY, headers)
    return answer.body["delivery_id"]


async def test_a_webhook_that_was_ignored_says_what_was_off_and_since_when(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S13.3: 200 but no task; the trigger off, the rule paused, the event filtered."""
    path = f"/api/autopilots/{rule}"
    await shop.owner(
        "PATCH", f"{path}/triggers/{hook.id}", {"event_filters": [{"event": "issues", "actions": ["opened"]}]}
    )
    filtered = await explained(shop.owner, rule, delivery_id=await push(ingress, hook))
    assert filtered["verdict"] == "event_filtered"
    assert "github.push fits none of the trigger's filters" in filtered["summary"]
    assert "issues:opened" in filtered["summary"]
    await shop.owner("PATCH", f"{path}/triggers/{hook.id}", {"event_filters": [], "enabled": False})
    disabled = await explained(shop.owner, rule, delivery_id=await push(ingress, hook))
    assert disabled["verdict"] == "trigger_disabled"
    assert "(edit trigger, by owner" in disabled["summary"]
    await shop.owner("PATCH", f"{path}/triggers/{hook.id}", {"enabled": True})
    await shop.owner("PATCH", path, {"status": "paused"})
    paused = await push(ingress, hook)
    await shop.owner("PATCH", path, {"status": "active"})
    answer = await explained(shop.owner, rule, delivery_id=paused)
    assert answer["verdict"] == "autopilot_paused"
    assert "(pause, by owner" in answer["summary"]


async def test_a_rejected_webhook_says_what_is_wrong_with_its_signature(
    shop: Shop, ingress: Ingress, rule: AutopilotId
) -> None:
    hook = await rules.make_webhook_trigger(
        shop.database, shop.setting, rule, provider="github", secret=SECRET
    )
    missing = await explained(shop.owner, rule, delivery_id=await push(ingress, hook))
    assert missing["verdict"] == "missing_signature"
    wrong = await ingress.post(hook.token, BODY, signed("another secret of that length", BODY))
    answer = await explained(shop.owner, rule, delivery_id=wrong.body["delivery_id"])
    assert answer["verdict"] == "invalid_signature"
    assert "same secret" in answer["next_step"]
    assert SECRET not in str(answer)


async def test_a_repeated_webhook_says_that_it_is_one_and_leads_to_its_run(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    first = await push(ingress, hook, "d-1")
    assert [await push(ingress, hook, "d-1") for _ in range(2)] == [first, first]
    answer = await explained(shop.owner, rule, delivery_id=first)
    assert "it came 3 times" in check(answer, "duplicate")["text"]
    assert answer["verdict"] == "queued"
    await drain(worker(shop.database))
    assert (await explained(shop.owner, rule, delivery_id=first))["verdict"] == "task_queued"


async def test_two_runs_of_one_event_are_explained_by_their_keys(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S13.3: created twice; no key at all, and a sender that gives every attempt a new one."""
    bare = await push(ingress, hook)
    answer = await explained(shop.owner, rule, delivery_id=bare)
    assert "neither a delivery id nor an Idempotency-Key" in check(answer, "no_key")["text"]
    await push(ingress, hook, "d-1")
    second = await push(ingress, hook, "d-2")
    answer = await explained(shop.owner, rule, delivery_id=second)
    others = check(answer, "other_keys")
    assert "the provider's delivery id, 'd-2'" in others["text"]
    assert [one["dedupe_key"] for one in others["facts"]["others"]] == [None, "d-1"]
    received = await explained(shop.owner, rule, at=await _received(shop, second), trigger_id=hook.id)
    assert received["verdict"] == "several_runs"
    assert f"by delivery {second} to trigger {hook.id}" in received["summary"]


async def _received(shop: Shop, delivery_id: str) -> Any:
    async with shop.database.connection() as conn:
        await conn.execute(
            """UPDATE webhook_delivery d SET received_at = n.received_at FROM webhook_delivery n WHERE n.id = $1::text::uuid""",
            delivery_id,
        )
        await conn.execute(
            "UPDATE autopilot_run SET created_at = d.received_at FROM webhook_delivery d WHERE d.id = $1::text::uuid",
            delivery_id,
        )
        return await conn.fetchval(
            "SELECT received_at FROM webhook_delivery WHERE id = $1::text::uuid", delivery_id
        )


async def test_a_redelivery_that_ran_says_why_the_first_did_not_stand_in_its_way(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S9.7"""
    path = f"/api/autopilots/{rule}/triggers/{hook.id}"
    await shop.owner("PATCH", path, {"enabled": False})
    await push(ingress, hook, "d-1")
    await shop.owner("PATCH", path, {"enabled": True})
    again = await push(ingress, hook, "d-1")
    answer = await explained(shop.owner, rule, delivery_id=again)
    assert "does not stand in the way" in check(answer, "slot_free")["text"]


async def test_a_skipped_webhook_says_why_and_a_waiting_one_where(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=600)
    skipped = await explained(shop.owner, rule, delivery_id=await push(ingress, hook))
    assert skipped["verdict"] == "runtime_offline"
    with points.armed("ingress.decide", "raise", error=RuntimeError("a bug")):
        undecided = await push(ingress, hook, "d-9")
    answer = await explained(shop.owner, rule, delivery_id=undecided)
    assert (answer["verdict"], codes(answer)) == ("queued", ["received", "other_keys", "queued"])
    await execute(
        shop.database,
        "UPDATE dispatch_queue SET lease_token = gen_random_uuid(), lease_until = clock_timestamp() + interval '20 s'",
    )
    answer = await explained(shop.owner, rule, delivery_id=undecided)
    assert (answer["verdict"], fact(answer, "attempts")) == ("leased", 0)
    assert "another takes the delivery at" in answer["summary"]


async def test_a_trigger_that_never_received_anything_sends_its_owner_to_the_provider(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    answer = await explained(shop.owner, rule, trigger_id=hook.id)
    assert answer["verdict"] == "nothing_stops_it"
    assert "see at the provider" in check(answer, "nothing_received")["text"]


async def test_the_same_key_is_found_among_many_and_many_filters_stay_one_line(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S13.3: created twice, at a trigger that is never quiet."""
    path = f"/api/autopilots/{rule}/triggers/{hook.id}"
    for _ in range(21):
        await push(ingress, hook)
    await shop.owner("PATCH", path, {"event_filters": [{"event": f"e{n}" * 30} for n in range(50)]})
    filtered = await push(ingress, hook, "d-1")
    answer = await explained(shop.owner, rule, delivery_id=filtered)
    assert answer["verdict"] == "event_filtered"
    assert "and 45 more" in answer["summary"]
    assert "At least 20 other deliveries of this event" in check(answer, "other_keys")["text"]
    await shop.owner("PATCH", path, {"event_filters": []})
    again = await explained(shop.owner, rule, delivery_id=await push(ingress, hook, "d-1"))
    others = check(again, "slot_free")["facts"]["others"]
    assert others[-1]["id"] == filtered
    assert len(others) == 20


async def test_what_was_ignored_later_than_it_was_answered_names_what_was_off_then(
    shop: Shop, ingress: Ingress, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S9.10: undecided at ingress, and the rule archived before the dispatcher came to it."""
    with points.armed("ingress.decide", "raise", error=RuntimeError("a bug")):
        undecided = await push(ingress, hook)
    await shop.owner("DELETE", f"/api/autopilots/{rule}")
    await Admissions(
        shop.database, DispatcherConfig(database_url=Secret("postgresql://unused")), wake=lambda: None
    ).step()
    answer = await explained(shop.owner, rule, delivery_id=undecided)
    assert answer["verdict"] == "autopilot_archived"
    assert "was archived since version 3 (archive, by owner" in answer["summary"]
