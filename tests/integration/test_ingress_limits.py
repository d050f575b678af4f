"""The gates in front of the look-up, over a real socket (S9.2)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import msgspec
import pytest
from tests.support.ingress import running_ingress, signed
from tests.support.nats import nats_server
from tests.support.rules import WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import abuse
from autopilot.domain.webhook.tokens import token_hash
from autopilot.ingress.hints import Hint, Hints
from autopilot.ingress.limits import GoodTokens, SlidingMinute
from autopilot.kit import metrics
from autopilot.storage.database import Database

SECRET = "a signing secret of a decent length"
UNKNOWN = "awt_" + "x" * 43


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET)


@pytest.mark.parametrize(("header", "word"), [("X-Forwarded-For", ""), ("Forwarded", "for=")])
async def test_an_address_beyond_its_limit_is_429_with_the_time_to_wait(
    postgres_url: str, trigger: WebhookTrigger, header: str, word: str
) -> None:
    """S9.2, S9.16; other addresses, told by a trusted proxy in the header we believe, are not concerned."""
    async with running_ingress(
        postgres_url,
        ingress_ip_per_min=2,
        ingress_trusted_proxies=("127.0.0.1",),
        ingress_forwarded_header=header,
    ) as ingress:
        mine = signed(SECRET, b"{}") | {header: word + "198.51.100.1"}
        assert [(await ingress.post(trigger.token, b"{}", mine)).status for _ in range(3)] == [200, 200, 429]
        refused = await ingress.post(UNKNOWN, b"{}", mine)
        assert refused.status == 429
        assert 50 <= int(refused.headers["Retry-After"]) <= 60
        spoofed = mine | dict.fromkeys({"X-Forwarded-For", "Forwarded"} - {header}, "for=198.51.100.2")
        assert (await ingress.post(trigger.token, b"{}", spoofed)).status == 429
        other = mine | {header: word + "198.51.100.2"}
        assert (await ingress.post(trigger.token, b"{}", other)).status == 200


async def test_unknown_tokens_and_bad_signatures_run_into_debt(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.2: checked before the look-up and charged after it; nothing of the refused is stored."""
    async with running_ingress(postgres_url, ingress_bad_per_min=3) as ingress:
        assert (await ingress.post(UNKNOWN)).status == 404
        assert (await ingress.post("short")).status == 404
        assert (await ingress.post(trigger.token)).status == 401
        refused = await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}"))
        assert refused.status == 429
        assert 50 <= int(refused.headers["Retry-After"]) <= 60
        assert (await ingress.post(UNKNOWN)).status == 429
    async with database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM webhook_delivery") == 1
    assert b'autopilot_ingress_limited_total{gate="bad_credentials"}' in metrics.render()


async def test_a_token_that_was_good_lately_passes_the_debt_of_its_address(
    postgres_url: str, trigger: WebhookTrigger
) -> None:
    """S9.2: a shared address (a provider's) is not shut by others' mistakes."""
    async with running_ingress(postgres_url, ingress_bad_per_min=1) as ingress:
        good = signed(SECRET, b"{}")
        assert (await ingress.post(trigger.token, b"{}", good)).status == 200
        assert (await ingress.post(UNKNOWN)).status == 404
        assert (await ingress.post(UNKNOWN)).status == 429
        assert (await ingress.post(trigger.token, b"{}", good)).status == 200


async def test_a_flood_of_unknown_tokens_costs_no_query_once_in_debt(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.2: told by the server itself, whose sessions have begun nothing since."""

    async def sessions() -> Sequence[object]:
        async with database.connection() as conn:
            return await conn.fetch(
                """SELECT pid, query_start, state_change FROM pg_stat_activity
                    WHERE application_name = 'autopilot-ingress' AND datname = current_database() ORDER BY pid"""
            )

    async with running_ingress(postgres_url, ingress_bad_per_min=5) as ingress:
        for number in range(5):
            assert (await ingress.post(f"awt_{number:043}")).status == 404
        before = await sessions()
        assert before
        flood = [ingress.post(f"awt_{number:043}", b"[" * 1000) for number in range(300)]
        flood += [ingress.post(token) for token in ("short", trigger.token)]
        assert {answer.status for answer in await asyncio.gather(*flood)} == {429}
        assert await sessions() == before


async def test_replicas_tell_each_other_of_debt_and_of_good_tokens(
    postgres_url: str, trigger: WebhookTrigger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.2: so that a sender in debt gains nothing from the next replica, and its neighbours lose nothing there."""
    heard: asyncio.Queue[Hint] = asyncio.Queue()
    hear = Hints._hear

    def noting(hints: Hints, content: bytes, debt: SlidingMinute, good: GoodTokens) -> None:
        hear(hints, content, debt, good)
        with suppress(msgspec.DecodeError):
            heard.put_nowait(msgspec.json.decode(content, type=Hint))

    monkeypatch.setattr(Hints, "_hear", noting)
    good = signed(SECRET, b"{}")
    async with (
        nats_server() as server,
        running_ingress(postgres_url, server.url, ingress_bad_per_min=3) as one,
        running_ingress(postgres_url, server.url, ingress_bad_per_min=3) as two,
        Bus(server.url, name="test") as bus,
    ):
        await bus.wait_connected()
        assert bus.client is not None
        for nonsense in (b"", b"{", b'{"sender": 1}', b"[" * 200_000):
            await bus.client.publish(abuse, nonsense)
        assert (await one.post(trigger.token, b"{}", good)).status == 200
        for _ in range(3):
            assert (await one.post(UNKNOWN)).status == 404
        told = {"127.0.0.1": 0}
        while told["127.0.0.1"] < 2 * 3:  # each of the two hears all that is said
            told["127.0.0.1"] += (await heard.get()).debts.get("127.0.0.1", 0)
        refused = await two.post(UNKNOWN)
        assert (refused.status, int(refused.headers["Retry-After"]) >= 50) == (429, True)
        assert (await two.post(trigger.token, b"{}", good)).status == 200
        await server.stop(signal.SIGKILL)
        for replica in (one, two):
            assert (await replica.post(UNKNOWN)).status == 429
            assert (await replica.post(trigger.token, b"{}", good)).status == 200


async def test_a_token_that_died_is_not_good_any_longer(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.1: rotation kills the old one at once, also for the gates."""
    async with running_ingress(postgres_url, ingress_bad_per_min=1) as ingress:
        good = signed(SECRET, b"{}")
        assert (await ingress.post(trigger.token, b"{}", good)).status == 200
        async with database.connection() as conn:
            await conn.execute("UPDATE autopilot_trigger SET token_hash = 'new', rev = rev + 1")
        assert (await ingress.post(trigger.token, b"{}", good)).status == 404
        assert (await ingress.post(trigger.token, b"{}", good)).status == 429


async def test_what_is_wrong_with_a_body_is_not_told_to_a_token_that_died(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.1, S9.2: one that was good is looked up with its batch, so its body is read first; the answer is the same 404."""
    bad: list[tuple[int, bytes, dict[str, str]]] = [
        (400, b"{", {}),
        (413, b"x" * (256 * 1024 + 1), {}),
        (415, b"{}", {"Content-Encoding": "gzip"}),
        (400, b"{}", {"Idempotency-Key": "x" * 300}),
    ]
    async with running_ingress(postgres_url) as ingress:
        unknown = await ingress.post(UNKNOWN)
        for status, body, more in bad:
            await set_hash(database, token_hash(trigger.token))
            assert (await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}"))).status == 200
            assert (await ingress.post(trigger.token, body, more)).status == status
            await set_hash(database, b"rotated")
            answer = await ingress.post(trigger.token, body, more)
            assert (answer.status, answer.body) == (404, unknown.body)


async def set_hash(database: Database, value: bytes) -> None:
    async with database.connection() as conn:
        await conn.execute("UPDATE autopilot_trigger SET token_hash = $1, rev = rev + 1", value)


async def test_other_paths_and_methods_cost_nothing(postgres_url: str, trigger: WebhookTrigger) -> None:
    async with running_ingress(postgres_url, ingress_ip_per_min=1, ingress_bad_per_min=1) as ingress:
        for _ in range(3):
            assert (await ingress.request("GET", "/favicon.ico")).status == 404
            assert (await ingress.request("GET", f"/api/webhooks/autopilots/{UNKNOWN}")).status == 405
        assert (await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}"))).status == 200
