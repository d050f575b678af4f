"""`deliveries` and `delivery-replay` against the real API (S9.11, S14)."""

from __future__ import annotations

import json

import pytest
from tests.support import rules
from tests.support.api import Api
from tests.support.cli import Ran, autopilot, environment
from tests.support.dispatching import drain, execute, fetch, receive, worker
from tests.support.work import Shop, make_shop

from autopilot.domain.permissions import TokenKind


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def as_owner(shop: Shop, *arguments: str) -> Ran:
    token = await shop.api.token(TokenKind.PERSONAL, shop.place.owner_id)
    env = environment(shop.api.base, AUTOPILOT_TOKEN=token, AUTOPILOT_WORKSPACE=shop.place.slug)
    return await autopilot(shop.api.base, *arguments, env=env)


async def test_deliveries_are_listed_and_one_is_replayed_by_the_beginnings_of_ids(shop: Shop) -> None:
    """S14: 0 with a run under way; the same key gives the same replay; who replays what is ignored now is told so, with 1."""
    rule = await shop.rule()
    hook, other = [await rules.make_webhook_trigger(shop.database, shop.setting, rule) for _ in range(2)]
    _, first = await receive(shop.database, hook.id, b"{}", event="push\x1b[31m")
    await receive(shop.database, other.id, b"{}", event="deploy.finished")
    await drain(worker(shop.database))

    listed = await as_owner(shop, "deliveries", str(rule), "--full-id", "--trigger", str(hook.id)[:-1])
    assert (listed.code, listed.err) == (0, "")
    head, line = listed.out.splitlines()
    assert head.split() == ["ID", "STATUS", "EVENT", "RECEIVED", "TIMES", "RUN", "REPLAY_OF", "REASON"]
    assert line.split()[:3] == [str(first), "dispatched", "push\ufffd[31m"]
    assert " running " in line

    made = await as_owner(
        shop, "delivery-replay", str(rule)[:-1], str(first)[:-1], "--output", "json", "--idempotency-key", "k"
    )
    assert made.code == 0, made.err
    assert json.loads(made.out)["replayed_from"] == str(first)
    again = await as_owner(shop, "delivery-replay", str(rule), str(first), "--idempotency-key", "k")
    assert again.code == 0, again.err
    assert json.loads(made.out)["id"] in again.out
    assert len(await fetch(shop.database, "SELECT 1 FROM webhook_delivery")) == 3

    await execute(shop.database, """UPDATE autopilot_trigger SET event_filters = '[{"event": "x"}]'""")
    refused = await as_owner(shop, "delivery-replay", str(rule), str(first))
    assert (refused.code, refused.err) == (1, "Error: The replay is ignored: event_filtered\n")
    assert str(first) in refused.out


async def test_what_is_not_there_is_said_and_the_help_warns(shop: Shop) -> None:
    """S14: the help begins with the warning."""
    rule = await shop.rule()
    none = await as_owner(shop, "deliveries", str(rule))
    assert (none.code, none.out, none.err) == (0, "", "No deliveries here.\n")
    missing = await as_owner(shop, "delivery-replay", str(rule), "0195a1b2")
    assert (missing.code, missing.err) == (
        1,
        "Error: No delivery here has an id that begins with 0195a1b2.\n",
    )
    told = await as_owner(shop, "delivery-replay", "--help")
    assert told.out.splitlines()[2].strip().startswith("acts for real: ")
