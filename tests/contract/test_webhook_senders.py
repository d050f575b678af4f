"""S9.5, S9.6: what the providers' own libraries sign passes the real ingress, and GitHub's examples arrive as they were sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from tests.support.database_time import simulated_time
from tests.support.dispatching import assert_coherent
from tests.support.ingress import Answer, Ingress, running_ingress
from tests.support.provider_vectors import SIGNED_AT, STANDARD_SECRET, VECTORS
from tests.support.rules import Setting, WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger
from tests.support.senders import LIBRARIES, Signer, github_examples

from autopilot.storage.bodies import body_of
from autopilot.storage.database import Database

SLOTS = 16


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


async def hook(database: Database, setting: Setting, **fields: Any) -> WebhookTrigger:
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, **fields)


async def kept(database: Database, answer: Answer) -> Mapping[str, Any]:
    async with database.connection() as conn:
        found = await conn.fetchrow(
            "SELECT d.*, b.body, b.raw_size FROM webhook_delivery d JOIN webhook_body b ON b.delivery_id = d.id WHERE d.id = $1",
            answer.body["delivery_id"],
        )
    assert found is not None
    return {**found, "body": body_of(found)}


@pytest.mark.parametrize(
    ("provider", "sign"),
    [
        pytest.param(provider, sign, id=f"{provider} by {sign.__name__}")
        for provider, signers in LIBRARIES.items()
        for sign in signers
    ],
)
async def test_what_the_providers_library_signs_is_valid(
    ingress: Ingress, database: Database, setting: Setting, provider: str, sign: Signer
) -> None:
    """WH21."""
    trigger = await hook(database, setting, provider=provider, secret=STANDARD_SECRET)
    body = '{"type": "x",  "text": "café 😊 \\u0000", "n": 12345678901234567890}'
    now = int(time.time())
    answer = await ingress.post(trigger.token, body, sign(STANDARD_SECRET, body, now))
    assert (answer.status, answer.body["status"]) == (200, "accepted")
    delivery = await kept(database, answer)
    assert (delivery["signature_status"], delivery["body"]) == ("valid", body.encode())
    for refused, headers in (
        (body + " ", sign(STANDARD_SECRET, body, now)),
        (body, sign("whsec_" + "A" * 32, body, now)),
    ):
        answer = await ingress.post(trigger.token, refused, headers)
        assert (answer.status, answer.body["reason_code"]) == (401, "invalid_signature")
    if provider != "github":
        answer = await ingress.post(trigger.token, body, sign(STANDARD_SECRET, body, now - 330))
        assert (answer.status, answer.body["reason_code"]) == (401, "invalid_signature")
        assert "s before it arrived" in answer.body["reason"]
    await assert_coherent(database)


async def test_every_example_of_githubs_passes_as_it_was_sent(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.3, S9.4, S9.7: event, delivery id and bytes of each; `ping` is ignored; a second time all are repeats."""
    trigger = await hook(database, setting, provider="github", secret=STANDARD_SECRET)
    examples = github_examples(STANDARD_SECRET)
    assert len(examples) > 300
    slots = asyncio.Semaphore(SLOTS)

    async def deliver(number: int) -> Answer:
        example = examples[number]
        headers = {
            "X-GitHub-Event": example.event,
            "X-GitHub-Delivery": f"d-{number}",
            "X-Hub-Signature-256": example.signature,
        }
        async with slots:
            return await ingress.post(trigger.token, example.body.encode(), headers)

    answers = await asyncio.gather(*(deliver(number) for number in range(len(examples))))
    async with database.connection() as conn:
        rows = await conn.fetch(
            """SELECT d.dedupe_key, d.event, d.status, d.signature_status, b.body, b.raw_size
                 FROM webhook_delivery d JOIN webhook_body b ON b.delivery_id = d.id"""
        )
    by_key = {row["dedupe_key"]: row for row in rows}
    assert len(by_key) == len(rows) == len(examples)
    for number, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        action = msgspec.json.decode(example.body).get("action")
        row = by_key[f"d-{number}"]
        assert row["event"] == f"github.{example.event}" + (f".{action}" if action else "")
        assert (row["signature_status"], body_of(row)) == ("valid", example.body.encode())
        assert answer.status == 200
        assert answer.body["status"] == ("ignored" if example.event == "ping" else "accepted")
    again = await asyncio.gather(*(deliver(number) for number in range(0, len(examples), 20)))
    assert {answer.body["status"] for answer in again} == {"duplicate"}
    await assert_coherent(database)


async def test_every_row_is_taken_over_the_wire_by_the_clock_of_the_database(
    postgres_url: str, database: Database, setting: Setting
) -> None:
    """S9.5, S1.4: each vector on the day it was signed; five minutes later those that are signed with a time are refused."""
    day = datetime.fromtimestamp(SIGNED_AT, UTC)
    async with simulated_time(postgres_url, day) as clock:
        settings = urlencode(clock.url_settings)
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{settings}"
        async with running_ingress(url) as ingress:
            for vector in VECTORS:
                if vector.event is None:
                    continue
                trigger = await hook(database, setting, provider=vector.provider, secret=vector.secret)
                headers = {**vector.headers, **vector.signature, "Content-Type": vector.content_type}
                signed_at = datetime.fromtimestamp(vector.signed_at, UTC)
                await clock.set(signed_at + timedelta(seconds=300))
                answer = await ingress.post(trigger.token, vector.body, headers)
                assert (answer.status, answer.body["status"]) == (200, "accepted"), vector
                delivery = await kept(database, answer)
                assert (delivery["event"], delivery["dedupe_key"]) == (vector.event, vector.key)
                assert delivery["body"] == vector.body
                assert {delivery["headers"][name] for name in vector.signature} == {"present"}
                await clock.set(signed_at + timedelta(seconds=301))
                answer = await ingress.post(trigger.token, vector.body, headers)
                if vector.timed:
                    assert (answer.status, answer.body["reason_code"]) == (401, "invalid_signature")
                    assert "301 s before it arrived" in answer.body["reason"]
                elif vector.key is not None:
                    assert answer.body["status"] == "duplicate"


async def test_slacks_handshake_is_answered_with_its_challenge(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.8; https://docs.slack.dev/reference/events/url_verification"""
    (sign,) = LIBRARIES["slack"]
    trigger = await hook(database, setting, provider="slack", secret=STANDARD_SECRET, enabled=False)
    body = '{"token": "t", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P", "type": "url_verification"}'
    answer = await ingress.post(trigger.token, body, sign(STANDARD_SECRET, body, int(time.time())))
    assert answer.status == 200
    assert answer.body == {"challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}
    async with database.connection() as conn:
        row = await conn.fetchrow(
            "SELECT status, reason_code, event, response_body, run_id FROM webhook_delivery"
        )
    assert row is not None
    assert (row["status"], row["reason_code"], row["run_id"]) == ("ignored", "provider_ping", None)
    assert (row["event"], row["response_body"]) == ("slack.url_verification", answer.body)
    refused = await ingress.post(trigger.token, body, {"X-Slack-Signature": "v0=" + "0" * 64})
    assert refused.status == 401
    assert "challenge" not in refused.body
    for odd in ('{"type": "url_verification"}', '{"type": "url_verification", "challenge": ["x"]}'):
        answer = await ingress.post(trigger.token, odd, sign(STANDARD_SECRET, odd, int(time.time())))
        assert (answer.body["status"], answer.body["reason_code"]) == ("ignored", "provider_ping")
