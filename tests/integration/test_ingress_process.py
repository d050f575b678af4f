"""ingress as the process that operators run: what it serves, what it says, how it stops (S9.12, S15)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from tests.support.ingress import Answer, Ingress, signed
from tests.support.nats import free_port
from tests.support.rules import SECRET_KEY, WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger

from autopilot.ingress.receive import PATH
from autopilot.storage.database import Database

SECRET = "hunter2-is-the-signing-secret"
MARK = "never-to-be-seen"
UNKNOWN = "awt_" + "q" * 43


class Running(msgspec.Struct, frozen=True):
    """The process, a client of it, and where its health answers."""

    process: asyncio.subprocess.Process
    ingress: Ingress
    health: str


@asynccontextmanager
async def running_process(postgres_url: str) -> AsyncIterator[Running]:
    port, health_port = free_port(), free_port()
    environment = {
        "AUTOPILOT_DATABASE_URL": postgres_url,
        "AUTOPILOT_SECRET_KEYS": SECRET_KEY,
        "AUTOPILOT_INGRESS_PORT": str(port),
        "AUTOPILOT_HEALTH_PORT": str(health_port),
        "AUTOPILOT_LOG_LEVEL": "debug",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autopilot.ingress", env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while b"service_started" not in (line := await process.stderr.readline()):
            assert line, "it ended before it had started"
        async with aiohttp.ClientSession() as session:
            yield Running(
                process, Ingress(f"http://127.0.0.1:{port}", session), f"http://127.0.0.1:{health_port}"
            )
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET, provider="github")


async def every_kind_of_request(ingress: Ingress, token: str) -> list[Answer]:
    body = f'{{"text": "{MARK}"}}'.encode()
    good = signed(SECRET, body, X_GitHub_Event="push", X_GitHub_Delivery="d-1")
    wrong = signed(MARK, body)
    return [
        await ingress.post(token, body, good),
        await ingress.post(token, body, good),
        await ingress.post(token, body, wrong),
        await ingress.post(token, body),
        await ingress.post(token, f'{{"text": "{MARK}'.encode(), good),
        await ingress.post(token, f'"{MARK}"'.encode(), good),
        await ingress.post(token, body, good | {"Content-Encoding": MARK}),
        await ingress.post(token, body, good | {"Content-Type": "multipart/form-data"}),
        await ingress.post(token, MARK.encode() * 20_000, good),
        await ingress.post(token, body, good | {"X-GitHub-Delivery": MARK * 20}),
        await ingress.post(token, body, good | {"X-Filler": MARK * 1_015}),
        await ingress.post(UNKNOWN, body, good),
        await ingress.request("GET", PATH + token),
        await ingress.request("POST", f"{PATH}{token}/{MARK}", body),
    ]


async def broken_request(ingress: Ingress, token: str) -> bytes:
    host, _, port = ingress.base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {PATH}{token} HTTP/1.1\r\nHost: x\r\nBad Header {MARK}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_nothing_secret_reaches_a_log_a_metric_or_an_error(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.12: token, secret, signature and body, at the most talkative level, when all goes well and when it does not."""
    async with running_process(postgres_url) as running:
        answers = await every_kind_of_request(running.ingress, trigger.token)
        assert [answer.status for answer in answers] == [
            *(200, 200, 401, 401, 400, 400, 415, 400, 413, 400, 431, 404, 405, 404)
        ]
        broken = await broken_request(running.ingress, trigger.token)
        assert b" 400 " in broken.splitlines()[0]
        async with database.connection() as conn:
            await conn.execute("ALTER TABLE webhook_body ADD CONSTRAINT never CHECK (false) NOT VALID")
        body = f'["{MARK}"]'.encode()
        failed = await running.ingress.post(trigger.token, body, signed(SECRET, body))
        assert failed.status == 500
        async with running.ingress.session.get(running.health + "/metrics") as response:
            metrics = await response.read()
        assert b'autopilot_ingress_seconds_count{outcome="duplicate"} 1.0' in metrics
        running.process.send_signal(signal.SIGTERM)
        _, logs = await running.process.communicate()
    said = (
        logs + metrics + broken + b"".join(msgspec.json.encode(answer.body) for answer in [*answers, failed])
    )
    assert b"webhook_answered" in logs
    assert b"webhook_failed" in logs
    signature = signed(SECRET, body)["X-Hub-Signature-256"].removeprefix("sha256=")
    for secret in (trigger.token, trigger.token[4:20], UNKNOWN, SECRET, signature, MARK, SECRET_KEY):
        assert secret.encode() not in said


async def test_it_is_ready_with_its_database_and_stops_in_order(
    postgres_url: str, trigger: WebhookTrigger
) -> None:
    """S15: SIGTERM, exit code 0; NATS that was never named is no fault."""
    async with running_process(postgres_url) as running:
        async with asyncio.timeout(10):
            while (await running.ingress.session.get(running.health + "/readyz")).status != 200:
                assert running.process.returncode is None
        body = b"{}"
        assert (await running.ingress.post(trigger.token, body, signed(SECRET, body))).status == 200
        running.process.send_signal(signal.SIGTERM)
        await running.process.communicate()
        assert running.process.returncode == 0
