"""Every answer of ingress, over a real socket, with what it leaves in a real Postgres (S9.2, S9.3, S9.8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from multidict import CIMultiDict
from tests.support.dispatching import assert_coherent
from tests.support.ingress import Answer, Ingress, running_ingress, signed
from tests.support.rules import (
    Setting,
    WebhookTrigger,
    make_agent,
    make_autopilot,
    make_setting,
    make_webhook_trigger,
    set_runtime,
)

from autopilot.domain.states import ExecutionMode
from autopilot.ingress.receive import MAX_BODY_BYTES, PATH
from autopilot.storage.database import Database

SECRET = "a signing secret of a decent length"
PUSH = b'{"action": "opened",  "n": 12345678901234567890123, "text": "caf\xc3\xa9 \\u0000"}'


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


async def row(database: Database, sql: str, *arguments: object) -> dict[str, Any]:
    async with database.connection() as conn:
        found = await conn.fetchrow(sql, *arguments)
    return dict(found) if found is not None else {}


async def delivery(database: Database, answer: Answer) -> dict[str, Any]:
    return await row(
        database,
        """SELECT d.*, b.body, s.delivery_id AS slot, r.status AS run_status, r.source, r.reason_code AS run_reason, q.size
             FROM webhook_delivery d
             JOIN webhook_body b ON b.delivery_id = d.id
             LEFT JOIN webhook_dedupe s ON s.delivery_id = d.id
             LEFT JOIN autopilot_run r ON r.id = d.run_id AND r.webhook_delivery_id = d.id
             LEFT JOIN dispatch_queue q ON q.run_id = r.id
            WHERE d.id = $1""",
        answer.body["delivery_id"],
    )


async def execute(database: Database, sql: str, *arguments: object) -> None:
    async with database.connection() as conn:
        await conn.execute(sql, *arguments)


async def counted(database: Database) -> int:
    return int((await row(database, "SELECT count(*) AS n FROM webhook_delivery"))["n"])


async def test_a_signed_webhook_is_accepted_with_run_and_queue_entry(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.8 accepted; S9.14: the bytes that came are the bytes that are kept."""
    trigger = await hook(database, setting, provider="github", secret=SECRET)
    headers = signed(SECRET, PUSH, X_GitHub_Event="pull_request", X_GitHub_Delivery="d-1")
    answer = await ingress.post(trigger.token, PUSH, headers)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.body == {
        "status": "accepted",
        "delivery_id": answer.body["delivery_id"],
        "run_id": answer.body["run_id"],
        "autopilot_id": str(trigger.trigger.autopilot_id),
        "trigger_id": str(trigger.id),
    }
    kept = await delivery(database, answer)
    assert (kept["status"], kept["run_status"], kept["source"]) == ("queued", "pending", "webhook")
    assert (kept["event"], kept["dedupe_key"], kept["dedupe_source"]) == (
        "github.pull_request.opened",
        "d-1",
        "delivery_id",
    )
    assert (kept["signature_status"], kept["body"], kept["size"]) == ("valid", PUSH, len(PUSH))
    assert (kept["response_status"], kept["response_body"]) == (200, answer.body)
    assert kept["headers"]["X-Hub-Signature-256"] == "present"
    assert kept["attempt_count"] == 1
    await assert_coherent(database)


async def test_a_trigger_without_a_secret_needs_no_signature(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.6 bearer-only, and an array is a body."""
    trigger = await hook(database, setting)
    answer = await ingress.post(trigger.token, b"[1]")
    assert answer.body["status"] == "accepted"
    kept = await delivery(database, answer)
    assert (kept["signature_status"], kept["event"], kept["dedupe_key"]) == (
        "not_required",
        "webhook.received",
        None,
    )


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_signature"),
        ({"X-Hub-Signature-256": "sha256=" + "0" * 64}, "invalid_signature"),
        ({"X-Hub-Signature-256": "nonsense"}, "invalid_signature"),
    ],
)
async def test_a_bad_signature_is_rejected_and_kept_without_a_slot(
    ingress: Ingress, database: Database, setting: Setting, headers: dict[str, str], code: str
) -> None:
    """S9.6: and the redelivery with a good one runs."""
    trigger = await hook(database, setting, provider="github", secret=SECRET)
    answer = await ingress.post(trigger.token, PUSH, {"X-GitHub-Delivery": "d-1", **headers})
    assert answer.status == 401
    assert (answer.body["status"], answer.body["reason_code"]) == ("rejected", code)
    kept = await delivery(database, answer)
    assert (kept["status"], kept["reason_code"], kept["run_id"], kept["slot"]) == (
        "rejected",
        code,
        None,
        None,
    )
    again = await ingress.post(trigger.token, PUSH, signed(SECRET, PUSH, X_GitHub_Delivery="d-1"))
    assert again.body["status"] == "accepted"
    await assert_coherent(database)


async def test_a_run_that_is_skipped_at_once_is_told_with_its_reason(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S3.2, S9.8, S9.15: born dispatched, without a slot, so that a redelivery runs."""
    agent_id, runtime_id = await make_agent(
        database, setting.workspace_id, setting.owner_id, online=False, visibility="workspace"
    )
    autopilot = await make_autopilot(
        database, setting, execution_mode=ExecutionMode.RUN_ONLY, assignee_id=agent_id
    )
    trigger = await make_webhook_trigger(database, setting, autopilot.id)
    answer = await ingress.post(trigger.token, b"{}", {"Idempotency-Key": "k"})
    assert answer.status == 200
    assert (answer.body["status"], answer.body["reason_code"]) == ("skipped", "runtime_offline")
    assert "at dispatch time" in answer.body["reason"]
    kept = await delivery(database, answer)
    assert (kept["status"], kept["run_status"], kept["run_reason"]) == (
        "dispatched",
        "skipped",
        "runtime_offline",
    )
    assert str(kept["run_id"]) == answer.body["run_id"]
    assert (kept["slot"], kept["size"]) == (None, None)
    await set_runtime(database, runtime_id)
    again = await ingress.post(trigger.token, b"{}", {"Idempotency-Key": "k"})
    assert again.body["status"] == "accepted"
    await assert_coherent(database)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("UPDATE autopilot SET status = 'paused', rev = rev + 1", "autopilot_paused"),
        (
            "UPDATE autopilot SET status = 'archived', archived_at = now(), rev = rev + 1",
            "autopilot_archived",
        ),
        ("UPDATE autopilot_trigger SET enabled = false, rev = rev + 1", "trigger_disabled"),
        (
            'UPDATE autopilot_trigger SET event_filters = \'[{"event": "push"}]\', rev = rev + 1',
            "event_filtered",
        ),
        ("UPDATE autopilot_trigger SET event_filters = '{\"what\": 1}', rev = rev + 1", "event_filtered"),
    ],
)
async def test_what_starts_nothing_is_ignored_and_kept(
    ingress: Ingress, database: Database, setting: Setting, change: str, code: str
) -> None:
    """S4.2, S9.8, S9.9: no run, no slot, and why."""
    trigger = await hook(database, setting, provider="github")
    await execute(database, change)
    answer = await ingress.post(
        trigger.token, b"{}", {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d-1"}
    )
    assert answer.status == 200
    assert (answer.body["status"], answer.body["reason_code"]) == ("ignored", code)
    assert "run_id" not in answer.body
    kept = await delivery(database, answer)
    assert (kept["status"], kept["reason_code"], kept["run_id"], kept["slot"]) == (
        "ignored",
        code,
        None,
        None,
    )
    await assert_coherent(database)


async def test_a_disabled_trigger_is_told_before_a_paused_rule(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.2: trigger, then autopilot."""
    trigger = await hook(database, setting)
    await execute(database, "UPDATE autopilot SET status = 'paused'")
    await execute(database, "UPDATE autopilot_trigger SET enabled = false")
    assert (await ingress.post(trigger.token)).body["reason_code"] == "trigger_disabled"


async def test_a_ping_is_answered_before_anything_else_is_judged(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.2, S9.8 provider_ping."""
    trigger = await hook(database, setting, provider="github")
    await execute(database, "UPDATE autopilot SET status = 'paused'")
    answer = await ingress.post(trigger.token, b'{"zen": "."}', {"X-GitHub-Event": "ping"})
    assert (answer.body["status"], answer.body["reason_code"]) == ("ignored", "provider_ping")


async def test_a_form_is_signed_over_its_raw_bytes(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """WH5, S9.3: GitHub's default content type."""
    trigger = await hook(database, setting, provider="github", secret=SECRET)
    form = b"payload=%7B%22action%22%3A+%22opened%22%7D"
    headers = signed(SECRET, form, X_GitHub_Event="issues") | {
        "Content-Type": "application/x-www-form-urlencoded"
    }
    answer = await ingress.post(trigger.token, form, headers)
    assert answer.body["status"] == "accepted"
    kept = await delivery(database, answer)
    assert (kept["event"], kept["body"], kept["content_type"]) == (
        "github.issues.opened",
        form,
        "application/x-www-form-urlencoded",
    )


@pytest.mark.parametrize(
    ("body", "headers", "field"),
    [
        (b"", {}, "body"),
        (b"3", {}, "body"),
        (b"{", {}, "body"),
        (b'"\xff"', {}, "body"),
        (b'{"a": NaN}', {}, "body"),
        (b'{"a": "\\ud800"}', {}, "body"),
        (b"[" * 101 + b"]" * 101, {}, "body"),
        (b"--x--", {"Content-Type": "multipart/form-data; boundary=x"}, "body"),
        (b"{}", {"Idempotency-Key": "k" * 256}, "Idempotency-Key"),
        (b'{"event": "%s"}' % (b"e" * 256), {}, "event"),
    ],
)
async def test_what_cannot_be_read_is_400_and_not_kept(
    ingress: Ingress, database: Database, setting: Setting, body: bytes, headers: dict[str, str], field: str
) -> None:
    """S9.3: with a reason that names the field."""
    trigger = await hook(database, setting)
    answer = await ingress.post(trigger.token, body, headers)
    assert (answer.status, answer.body["code"], answer.body["field"]) == (400, "invalid_body", field)
    assert await counted(database) == 0


async def test_a_body_of_256_kib_is_taken_and_one_byte_more_is_413(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.2: whether its length is announced or not."""
    trigger = await hook(database, setting)
    fits = b'{"a": "' + b"x" * (MAX_BODY_BYTES - 9) + b'"}'
    assert len(fits) == MAX_BODY_BYTES
    assert (await ingress.post(trigger.token, fits)).body["status"] == "accepted"
    assert (await ingress.post(trigger.token, fits + b" ")).status == 413

    async def in_chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(fits) + 1, 65536):
            yield (fits + b" ")[start : start + 65536]

    async with ingress.session.post(
        ingress.base + PATH + trigger.token, data=in_chunks(), headers={"Content-Type": "application/json"}
    ) as response:
        assert response.status == 413
    assert await counted(database) == 1


@pytest.mark.parametrize(
    ("encodings", "status"),
    [(["gzip"], 415), (["identity", "gzip"], 415), (["identity, br"], 415), (["identity"], 200), ([""], 200)],
)
async def test_a_content_encoding_is_415(
    ingress: Ingress, database: Database, setting: Setting, encodings: list[str], status: int
) -> None:
    """S9.3: nothing is decompressed, in whichever of several headers it is told; `identity` and nothing say that nothing needs to be."""
    trigger = await hook(database, setting)
    headers = CIMultiDict([("Content-Encoding", encoding) for encoding in encodings])
    async with ingress.session.post(
        ingress.base + PATH + trigger.token, data=b"{}", headers=headers
    ) as answer:
        assert answer.status == status
        assert (await answer.json(content_type=None)).get("code") == (
            "content_encoding_refused" if status == 415 else None
        )


async def test_every_unknown_path_and_token_gets_the_same_404(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.2: nothing tells a dead token from one that never was, or from another path."""
    trigger = await hook(database, setting)
    await execute(
        database,
        "UPDATE autopilot_trigger SET deleted_at = now(), token_hash = NULL, enabled = false, rev = rev + 1",
    )
    paths = [
        PATH + trigger.token,
        PATH + "awt_" + "x" * 43,
        PATH + "short",
        PATH,
        PATH + trigger.token + "/",
        PATH + trigger.token + "/more",
        "/",
        "/api/webhooks",
        "/%2e%2e/x",
    ]
    answers = [await ingress.request("POST", path, b"{}") for path in paths]
    assert {answer.status for answer in answers} == {404}
    assert len({msgspec.json.encode(answer.body) for answer in answers}) == 1
    assert {answer.headers["Content-Type"] for answer in answers} == {"application/problem+json"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_other_methods_are_405_without_a_look_up(ingress: Ingress, method: str) -> None:
    """S9: even for a token that does not exist."""
    answer = await ingress.request(method, PATH + "awt_" + "x" * 43)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_headers_beyond_16_kib_are_refused(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.16."""
    trigger = await hook(database, setting)
    many = {f"X-Filler-{n}": "v" * 2000 for n in range(9)}
    assert (await ingress.post(trigger.token, b"{}", many)).status == 431


async def test_a_body_that_ends_too_early_changes_nothing(
    ingress: Ingress, database: Database, setting: Setting
) -> None:
    """S9.2: a sender who hangs up in the middle leaves no delivery, and the next request is served."""
    trigger = await hook(database, setting)

    async def broken() -> AsyncIterator[bytes]:
        yield b'{"a":'
        raise ConnectionError("the sender is gone")

    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await ingress.session.post(ingress.base + PATH + trigger.token, data=broken())
    assert (await ingress.post(trigger.token)).status == 200
    assert await counted(database) == 1
