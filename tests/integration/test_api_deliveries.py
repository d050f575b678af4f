"""Webhook deliveries over REST: what is kept, and who may see what was sent (S9.14, S6.5)."""

from __future__ import annotations

import pytest
from tests.support import rules
from tests.support.api import Api, ids
from tests.support.dispatching import drain, execute, receive, worker
from tests.support.rules import WebhookTrigger
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import TokenKind
from autopilot.kit.ids import uuid7


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


@pytest.fixture
async def rule(shop: Shop) -> AutopilotId:
    return await shop.rule()


@pytest.fixture
async def hook(shop: Shop, rule: AutopilotId) -> WebhookTrigger:
    return await rules.make_webhook_trigger(shop.database, shop.setting, rule, provider="github")


async def test_a_delivery_shows_what_was_received_and_what_became_of_it(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    run_id, delivery_id = await receive(shop.database, hook.id, '{"é": 1}'.encode(), key="k1")
    await execute(shop.database, """UPDATE webhook_delivery SET headers = '{"X-GitHub-Event": "push"}'""")
    path = f"/api/autopilots/{rule}/deliveries/{delivery_id}"
    shown = (await shop.owner("GET", path)).body
    assert (shown["status"], shown["run_id"], shown["run_status"]) == ("queued", str(run_id), "pending")
    assert (shown["body"], shown["headers"]) == ('{"é": 1}', {"X-GitHub-Event": "push"})
    assert (shown["dedupe_key"], shown["dedupe_source"]) == ("k1", "delivery_id")
    assert (shown["signature_status"], shown["attempt_count"], shown["event"]) == ("not_required", 1, "push")
    assert (shown["response_status"], shown["response_body"]) == (200, {})
    await drain(worker(shop.database))
    shown = (await shop.owner("GET", path)).body
    assert (shown["status"], shown["run_status"], shown["dispatch_attempts"]) == ("dispatched", "running", 1)


async def test_a_large_body_reaches_the_caller_and_the_agent_whole(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S9.14: it is stored compressed, which nobody sees."""
    body = '{"text": "' + "caf\u00e9 \\u0000 " * 500 + '", "n": 12345678901234567890123}'
    run_id, delivery_id = await receive(shop.database, hook.id, body.encode())
    assert (await shop.owner("GET", f"/api/autopilots/{rule}/deliveries/{delivery_id}")).body["body"] == body
    await drain(worker(shop.database))
    async with shop.database.connection() as conn:
        kept = await conn.fetchrow(
            """SELECT octet_length(b.body), t.prompt FROM webhook_body b, agent_task t
                WHERE b.delivery_id = $1 AND t.run_id = $2""",
            *(delivery_id, run_id),
        )
    assert kept is not None
    assert kept[0] < len(body.encode()) / 10
    assert "caf\u00e9 \\u0000 " * 500 in kept["prompt"]
    assert "12345678901234567890123" in kept["prompt"]


async def test_what_was_sent_is_for_those_who_may_write(
    api: Api, shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S6.5."""
    _, delivery_id = await receive(shop.database, hook.id, b'{"secret": 1}')
    _, mia = await api.joined(shop.place, "mia")
    path = f"/api/autopilots/{rule}/deliveries"
    for reader in (mia, await api.program(shop.place, TokenKind.SERVICE)):
        shown = (await reader("GET", f"{path}/{delivery_id}")).body
        assert (shown["body"], shown["headers"], shown["body_expired"]) == (None, None, False)
        listed = (await reader("GET", path)).body["items"][0]
        assert listed["headers"] is None
        assert "body" not in listed
    assert (await shop.owner("GET", path)).body["items"][0]["headers"] == {}


async def test_a_body_that_retention_took_says_so(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S7.17."""
    _, delivery_id = await receive(shop.database, hook.id, b"{}")
    await execute(shop.database, "DELETE FROM webhook_body")
    shown = (await shop.owner("GET", f"/api/autopilots/{rule}/deliveries/{delivery_id}")).body
    assert (shown["body"], shown["body_expired"]) == (None, True)


async def test_an_undecided_delivery_shows_its_attempts(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S9.15, S10.1."""
    _, delivery_id = await receive(shop.database, hook.id, b"{}")
    await execute(
        shop.database,
        """WITH gone AS (DELETE FROM dispatch_queue RETURNING autopilot_id, trigger_id)
           INSERT INTO dispatch_deferred (kind, delivery_id, autopilot_id, trigger_id, attempts, available_at, enqueued_at)
           SELECT 'retry', $1, autopilot_id, trigger_id, 2, '2030-01-01', now() FROM gone""",
        delivery_id,
    )
    shown = (await shop.owner("GET", f"/api/autopilots/{rule}/deliveries/{delivery_id}")).body
    assert (shown["dispatch_attempts"], shown["next_attempt_at"]) == (2, "2030-01-01T00:00:00Z")


async def test_deliveries_are_listed_newest_first(
    shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S13: by cursor or offset, of one trigger if asked for."""
    made = [(await receive(shop.database, hook.id, b"{}"))[1] for _ in range(3)][::-1]
    other = await rules.make_webhook_trigger(shop.database, shop.setting, rule)
    _, last = await receive(shop.database, other.id, b"{}")
    path = f"/api/autopilots/{rule}/deliveries"
    assert ids(await shop.owner("GET", path)) == [last, *made]
    page = await shop.owner("GET", f"{path}?limit=2&trigger={hook.id}")
    assert ids(page) == made[:2]
    cursor = page.body["next_cursor"]
    assert ids(await shop.owner("GET", f"{path}?limit=2&trigger={hook.id}&cursor={cursor}")) == made[2:]
    assert ids(await shop.owner("GET", f"{path}?offset=3")) == made[2:]
    assert (await shop.owner("GET", f"{path}?offset=3&cursor={cursor}")).problem()[::2] == (400, "offset")


async def test_deliveries_of_other_rules_and_workspaces_do_not_exist(
    api: Api, shop: Shop, rule: AutopilotId, hook: WebhookTrigger
) -> None:
    """S6.6."""
    _, delivery_id = await receive(shop.database, hook.id, b"{}")
    other = await api.place("other")
    assert (await other.owner("GET", f"/api/autopilots/{rule}/deliveries")).status == 404
    assert (await other.owner("GET", f"/api/autopilots/{rule}/deliveries/{delivery_id}")).status == 404
    stranger = await shop.rule()
    assert (await shop.owner("GET", f"/api/autopilots/{stranger}/deliveries/{delivery_id}")).status == 404
    assert (await shop.owner("GET", f"/api/autopilots/{rule}/deliveries/{uuid7()}")).status == 404
