"""ingress as the process that operators run: when it is ready, how it stops (S15)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from tests.support.ingress import running_process, signed
from tests.support.rules import WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.storage.database import Database

SECRET = "hunter2-is-the-signing-secret"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET, provider="github")


async def test_it_is_ready_with_its_database_and_stops_in_order(
    postgres_url: str, trigger: WebhookTrigger
) -> None:
    """S15: SIGTERM, exit code 0; NATS that was never named is no fault."""
    async with running_process(postgres_url) as running:
        async with asyncio.timeout(30):
            while (await running.ingress.session.get(running.health + "/readyz")).status != 200:
                assert running.process.returncode is None
        body = b"{}"
        assert (await running.ingress.post(trigger.token, body, signed(SECRET, body))).status == 200
        running.process.send_signal(signal.SIGTERM)
        await running.process.communicate()
        assert running.process.returncode == 0
