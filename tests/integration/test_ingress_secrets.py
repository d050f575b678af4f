"""What comes in is told to nobody: no log, metric, error or process title has a token, a secret, a signature or a body (S9.12)."""

from __future__ import annotations

import asyncio
import hmac
import io
import logging
import re
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from tests.support.ingress import Answer, Ingress, Running, running_ingress, running_process, signed
from tests.support.nats import nats_server
from tests.support.rules import SECRET_KEY, WebhookTrigger, make_autopilot, make_setting, make_webhook_trigger
from tests.support.tcp_proxy import tcp_proxy

from autopilot import ingress as package
from autopilot.bus.connection import Bus
from autopilot.domain.webhook.tokens import token_hash
from autopilot.ingress import receive
from autopilot.ingress.receive import PATH
from autopilot.kit import log, metrics, points
from autopilot.storage.database import Database

SECRET = "hunter2-is-the-signing-secret"
MARK = "never-to-be-seen"
BODY = f'{{"text": "{MARK}"}}'.encode()
UNKNOWN = "awt_" + "q" * 43
MALFORMED = "wt_nearly-a-token"
POINTS = sorted(
    {
        name
        for module in Path(next(iter(package.__path__))).glob("*.py")
        for name in re.findall(r'points\.hit(?:_sync)?\("([a-z_.]+)"\)', module.read_text())
    }
)

Headers = Mapping[str, str]


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def trigger(database: Database) -> WebhookTrigger:
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET, provider="github")


def never_to_be_seen(token: str) -> list[bytes]:
    """Everything that was sent or is known, in each form in which it could slip out."""
    hashed = token_hash(token)
    signatures = [hmac.digest(key.encode(), BODY, "sha256") for key in (SECRET, MARK)]
    texts = [
        token,
        token[4:20],
        UNKNOWN,
        MALFORMED,
        SECRET,
        SECRET_KEY,
        MARK,
        hashed.hex(),
        repr(hashed)[2:20],
    ]
    texts += [signature.hex() for signature in signatures]
    return [*(text.encode() for text in texts), *map(b64encode, [hashed, BODY, *signatures])]


def assert_silent(said: bytes, token: str) -> None:
    for secret in never_to_be_seen(token):
        at = said.find(secret)
        assert at < 0, said[max(at - 300, 0) : at + 100]


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Our own logs as they would be written, at the most talkative level."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before, stream = structlog.get_config(), io.StringIO()
    log.configure("test", "debug", stream=stream)
    structlog.configure(cache_logger_on_first_use=False)
    root.setLevel(logging.DEBUG)
    yield stream
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_a_fault_in_any_step_tells_nothing_of_what_was_sent(
    postgres_url: str, trigger: WebhookTrigger, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error quotes all it can get hold of, as drivers do; the loop logs everything that it runs."""
    loop = asyncio.get_running_loop()
    quoted = f"invalid input: {trigger.token} {SECRET} {BODY!r} {token_hash(trigger.token)!r}"
    answers: list[Answer] = []
    monkeypatch.setattr(loop, "slow_callback_duration", 0.0)
    loop.set_debug(True)
    for point in POINTS:
        # A process of its own: a token that was good already skips the step that looks for it alone.
        async with running_ingress(postgres_url) as ingress:
            for number, error in enumerate(
                (RuntimeError(quoted), KeyError(quoted), UnicodeDecodeError("utf-8", BODY, 0, 1, quoted))
            ):
                error.__cause__ = ValueError(quoted)
                headers = signed(SECRET, BODY, X_GitHub_Delivery=f"{point} {number}")
                with points.armed(point, "raise", error=error) as armed:
                    answers.append(await ingress.post(trigger.token, BODY, headers))
                assert armed.hits, point
    async with running_ingress(postgres_url) as ingress:
        answers.append(await ingress.post(trigger.token, BODY, signed(SECRET, BODY)))
        monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 0.2)
        half = f"POST {PATH}{trigger.token} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n".encode()
        late = await raw(ingress, half + BODY)
    loop.set_debug(False)
    assert {answer.status for answer in answers} == {200, 202, 500}
    assert late.startswith(b"HTTP/1.1 408 ")
    said = logs.getvalue().encode()
    assert b"webhook_failed" in said
    assert b"Executing <" in said
    bodies = b"".join(msgspec.json.encode(answer.body) for answer in answers)
    assert_silent(said + late + bodies + metrics.render(), trigger.token)


async def raw(ingress: Ingress, request: bytes) -> bytes:
    """What comes back for bytes that no client would send, until the server closes."""
    host, _, port = ingress.base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def ask_everything(ingress: Ingress, token: str) -> list[Answer]:
    """Each kind of request, each from an address of its own so that no debt cuts it short."""
    address = count(1)
    good = signed(SECRET, BODY, X_GitHub_Event="push", X_GitHub_Delivery="d-1")
    keyed = signed(SECRET, BODY, Idempotency_Key="k-1")
    other = b'{"other": true}'

    async def post(to: str, body: bytes, headers: Headers, who: int | None = None) -> Answer:
        source = {"X-Forwarded-For": f"198.51.100.{who or next(address)}"}
        return await ingress.post(to, body, {**headers, **source})

    return [
        await post(token, BODY, good),
        await post(token, BODY, good),
        await post(token, BODY, good | {"X-GitHub-Event": "ping", "X-GitHub-Delivery": "d-2"}),
        await post(token, BODY, keyed),
        await post(token, other, signed(SECRET, other, Idempotency_Key="k-1")),
        await post(token, BODY, signed(MARK, BODY)),
        await post(token, BODY, {"X-Hub-Signature-256": MARK}),
        await post(token, BODY, {}),
        await post(token, BODY[:-2], good),
        await post(token, f'"{MARK}"'.encode(), good),
        await post(token, BODY + b"\xff", good),
        await post(token, b'{"a": "\\ud800", "text": "' + MARK.encode() + b'"}', good),
        await post(token, f"payload={MARK}".encode(), {"Content-Type": "application/x-www-form-urlencoded"}),
        await post(token, BODY, good | {"Content-Encoding": MARK}),
        await post(token, BODY, good | {"Content-Type": f"multipart/form-data; boundary={MARK}"}),
        await post(token, MARK.encode() * 20_000, good),
        await post(token, BODY, good | {"X-GitHub-Delivery": MARK * 20}),
        await post(token, BODY, good | {"X-Filler": MARK * 1_015}),
        await post(token, BODY, good | {"Expect": MARK}),
        await post(MALFORMED, BODY, good),
        *[await post(UNKNOWN, BODY, good, who=250) for _ in range(4)],
        await ingress.request("GET", PATH + token),
        await ingress.request("POST", f"{PATH}{token}/{MARK}", BODY),
        await ingress.request("POST", f"/?token={token}#{MARK}", BODY),
    ]


def malformed(token: str) -> list[bytes]:
    """What is hardly HTTP, or stops being it."""
    start = f"POST {PATH}{token} HTTP/1.1\r\nHost: x\r\n"
    chunked = start + "Transfer-Encoding: chunked\r\n\r\n"
    requests = [
        start + f"Bad Header {MARK}\r\n\r\n",
        start + "".join(f"X-{number}: {MARK}\r\n" for number in range(200)) + "\r\n",
        f"POST {PATH}{token}{MARK * 2_000} HTTP/1.1\r\n\r\n",
        f"PRIVMSG {PATH}{token} HTTP/1.1\r\n\r\n",
        f"POST {PATH}{token} HTTP/7\r\n\r\n",
        f"POST http://{MARK}:{token}@x{PATH}{token} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        f"CONNECT {token}:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        start + f"Content-Length: {MARK}\r\n\r\n",
        start + f"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{MARK}",
        chunked + f"5\r\n{MARK[:5]}\r\n{MARK}\r\n",
    ]
    return [request.encode() for request in requests]


async def titles() -> bytes:
    """The command line and the name of every process that there is, the database's sessions among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "comm"):
            try:
                found.append((process / name).read_bytes())
            except OSError:  # it has just ended
                continue
    return b"\n".join(found)


async def test_whatever_is_asked_nothing_of_it_is_repeated(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """A real process with debug logging and the loop's debug mode, through every status there is, until Postgres goes."""
    heard: list[bytes] = []
    async with nats_server() as nats, Bus(nats.url, name="test") as bus:
        bus.on_tell("autopilot.>", heard.append)
        await bus.wait_connected()
        async with (
            tcp_proxy(postgres_url) as proxy,
            running_process(
                proxy.url,
                PYTHONASYNCIODEBUG="1",
                AUTOPILOT_NATS_URL=nats.url,
                AUTOPILOT_INGRESS_TRUSTED_PROXIES="127.0.0.1",
                AUTOPILOT_INGRESS_BAD_PER_MIN="3",
                AUTOPILOT_INGRESS_HOLD_S="3",
                AUTOPILOT_TEST_POINTS="1",
                AUTOPILOT_POINTS="ingress.decide=raise@4",
            ) as running,
        ):
            async with asyncio.timeout(20):  # what is told before it has NATS is told to nobody
                while msgspec.json.decode(await shown_by(running, "/readyz"))["degraded"]:
                    await asyncio.sleep(0)
            ingress = running.ingress
            answers = await ask_everything(ingress, trigger.token)
            broken = [await raw(ingress, request) for request in malformed(trigger.token)]
            answers += await after_changes(ingress, trigger.token, database)
            shown = [await shown_by(running, path) for path in ("/metrics", "/readyz", "/livez")]
            shown.append(await titles())
            await proxy.down()
            answers.append(await ingress.post(trigger.token, BODY, signed(SECRET, BODY)))
            async with asyncio.timeout(20):
                while not any(b"198.51.100.250" in content for content in heard):
                    await asyncio.sleep(0)
            running.process.send_signal(signal.SIGTERM)
            _, logs = await running.process.communicate()
    statuses = {answer.status for answer in answers}
    assert statuses == {200, 202, 400, 401, 404, 405, 413, 415, 417, 422, 429, 431, 500, 503}
    outcomes = {answer.body.get("status") for answer in answers if answer.status in {200, 202, 401}}
    assert outcomes == {"accepted", "duplicate", "ignored", "skipped", "queued", "rejected"}
    assert {answer.split(b" ")[1] for answer in broken} == {b"400", b"404", b"431"}
    for word in (b"webhook_answered", b"webhook_failed", b"webhook_put_off", b"http_request_broken"):
        assert word in logs
    assert b'autopilot_ingress_seconds_count{outcome="duplicate"}' in shown[0]
    bodies = [msgspec.json.encode(answer.body) for answer in answers]
    assert_silent(b"\n".join([logs, *shown, *broken, *bodies, *heard]), trigger.token)


async def after_changes(ingress: Ingress, token: str, database: Database) -> list[Answer]:
    """What the same sender hears when the rule cannot run, when it is paused, and when the database refuses the row."""
    answers = []
    for change in (
        "UPDATE agent SET archived_at = clock_timestamp()",
        "UPDATE autopilot_trigger SET enabled = false, rev = rev + 1",
        "ALTER TABLE webhook_body ADD CONSTRAINT never CHECK (false) NOT VALID",
    ):
        async with database.connection() as conn:
            await conn.execute(change)
        answers.append(await ingress.post(token, BODY, signed(SECRET, BODY)))
    return answers


async def shown_by(running: Running, path: str) -> bytes:
    async with running.ingress.session.get(running.health + path) as response:
        content: Any = await response.read()
        return bytes(content)
