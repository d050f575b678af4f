"""New URLs and signing secrets while requests are on their way: rules-api and ingress over one database (S9.1, S9.13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.support import rules
from tests.support.api import Api
from tests.support.dispatching import assert_coherent, execute, fetch
from tests.support.ingress import Ingress, running_ingress, signed
from tests.support.work import Shop, make_shop

from autopilot.kit import points

OLD, NEW, NEWEST = (f"the {which} signing secret of this trigger" for which in ("old", "new", "newest"))
BODY = b"{}"


class Hook:
    """A webhook trigger with the old secret, its owner's client, and a door to send to."""

    def __init__(self, shop: Shop, ingress: Ingress, path: str, token: str) -> None:
        self.shop = shop
        self.ingress = ingress
        self.path = path
        self.token = token

    async def put(self, secret: str, **body: Any) -> dict[str, Any]:
        answer = await self.shop.owner("PUT", f"{self.path}/signing-secret", {"secret": secret, **body})
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.body
        return shown

    async def rotate_url(self) -> str:
        answer = await self.shop.owner("POST", f"{self.path}/rotate-url")
        assert answer.status == 200
        token: str = answer.body["webhook_token"]
        return token

    async def send(self, secret: str, token: str | None = None) -> int:
        return (await self.ingress.post(token or self.token, BODY, signed(secret, BODY))).status

    async def send_across(self, secret: str, change: Callable[[], Awaitable[object]]) -> int:
        """Send, and change something between the look-up and the write."""
        with points.armed("ingress.before_write", "block") as point:
            sending = asyncio.create_task(self.send(secret))
            await point.wait_reached()
            await change()
            point.release()
            return await sending


@pytest.fixture
async def hook(postgres_url: str, api: Api) -> AsyncIterator[Hook]:
    shop = await make_shop(api)
    rule = await shop.rule()
    trigger = await rules.make_webhook_trigger(shop.database, shop.setting, rule, secret=OLD)
    async with running_ingress(postgres_url) as ingress:
        yield Hook(shop, ingress, f"/api/autopilots/{rule}/triggers/{trigger.id}", trigger.token)


async def test_the_secret_before_is_good_for_its_grace_and_no_longer(hook: Hook) -> None:
    """S9.13: by default a day; 0 ends it at once; what has ended does not come back; only the last one before counts."""
    await hook.put(NEW)
    assert [await hook.send(secret) for secret in (OLD, NEW)] == [200, 200]
    await execute(
        hook.shop.database, "UPDATE autopilot_trigger SET previous_secret_until = clock_timestamp()"
    )
    assert [await hook.send(secret) for secret in (OLD, NEW)] == [401, 200]
    revived = await hook.put(NEW, grace_s=7 * 86_400)
    assert revived["previous_secret_until"] is None
    assert [await hook.send(secret) for secret in (OLD, NEW)] == [401, 200]
    await hook.put(NEWEST, grace_s=60)
    assert [await hook.send(secret) for secret in (OLD, NEW, NEWEST)] == [401, 200, 200]
    await hook.put(NEWEST, grace_s=0)
    assert [await hook.send(secret) for secret in (NEW, NEWEST)] == [401, 200]
    await hook.put(OLD)
    await hook.put(NEW)
    assert [await hook.send(secret) for secret in (NEWEST, OLD, NEW)] == [401, 200, 200]


async def test_a_secret_that_is_replaced_while_a_request_is_on_its_way(hook: Hook) -> None:
    """HAZARDS 12, S9.13: with a grace the request is taken, without one it is rejected; nothing is written twice."""
    assert await hook.send_across(OLD, lambda: hook.put(NEW)) == 200
    assert await hook.send_across(NEW, lambda: hook.put(NEWEST, grace_s=0)) == 401
    kept = await fetch(hook.shop.database, "SELECT signature_status FROM webhook_delivery ORDER BY id")
    assert [row["signature_status"] for row in kept] == ["valid", "invalid"]
    await assert_coherent(hook.shop.database)


async def test_a_url_that_is_replaced_is_dead_at_once_also_for_what_is_on_its_way(hook: Hook) -> None:
    """S9.1, HAZARDS 12: good until now is no reason to be good any longer; of two rotations at once the last one counts."""
    assert await hook.send(OLD) == 200
    fresh: list[str] = []

    async def rotate() -> None:
        fresh.append(await hook.rotate_url())

    assert await hook.send_across(OLD, rotate) == 404
    assert [await hook.send(OLD, token) for token in (hook.token, *fresh)] == [404, 200]
    await asyncio.gather(*(rotate() for _ in range(4)))
    assert sorted([await hook.send(OLD, token) for token in fresh]) == [200, 404, 404, 404, 404]
    assert len(await fetch(hook.shop.database, "SELECT 1 FROM webhook_delivery")) == 3
    await assert_coherent(hook.shop.database)
