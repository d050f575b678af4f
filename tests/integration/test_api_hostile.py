"""What a client can send that no library would, and that breaks nothing here (S9.12, S13.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tests.support.api import Api, Client
from tests.support.dispatching import fetch
from tests.support.work import Shop, make_shop
from yarl import URL

from autopilot.domain.permissions import Role, TokenKind
from autopilot.rules_api import decode

CHUNKED = b"Transfer-Encoding: chunked"


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


def request(client: Client, line: str, *headers: bytes, body: bytes = b"") -> bytes:
    """A request as bytes, with what no client library would let through."""
    given = [f"{line} HTTP/1.1", "Host: x", f"Authorization: Bearer {client.token}", "Connection: close"]
    if client.workspace is not None:
        given.append(f"X-Workspace: {client.workspace}")
    return b"\r\n".join([*(text.encode() for text in given), *headers, b"", body])


async def connect(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    base = URL(client.base)
    return await asyncio.open_connection(base.host, base.port)


async def answer_to(client: Client, sent: bytes) -> tuple[int, Any]:
    reader, writer = await connect(client)
    writer.write(sent)
    got = await reader.read()
    writer.close()
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), msgspec.json.decode(body)


async def test_an_idempotency_key_that_is_no_text_starts_nothing(shop: Shop) -> None:
    """S13.4."""
    rule = await shop.rule()
    for key in (b"a\xff", b"\xed\xa0\x80"):
        sent = request(shop.owner, f"POST /api/autopilots/{rule}/trigger?wait=0", b"Idempotency-Key: " + key)
        status, problem = await answer_to(shop.owner, sent)
        assert (status, problem["code"], problem["field"]) == (400, "malformed", "Idempotency-Key")
    assert await fetch(shop.database, "SELECT id FROM autopilot_run") == []


async def test_a_body_that_does_not_come_is_not_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "BODY_WITHIN_S", 0.05)
    head = (b"Content-Type: application/json", b"Content-Length: 400")
    status, problem = await answer_to(
        shop.owner, request(shop.owner, "POST /api/autopilots", *head, body=b"{")
    )
    assert (status, problem["code"]) == (408, "body_timeout")


@pytest.mark.parametrize("ended", ["sent away", "revoked"])
async def test_whoever_loses_the_right_while_their_body_is_on_its_way_is_refused(
    api: Api, shop: Shop, ended: str
) -> None:
    """S6.8: a request that is kept open for later outlives neither its person's place nor its token."""
    user_id, ada = await api.joined(shop.place, "ada", Role.ADMIN)
    head = (b"Content-Type: application/json", b"Content-Length: 32")
    line = "POST /api/tokens" if ended == "revoked" else "POST /api/members"
    text = b'{"name": "another"}' if ended == "revoked" else b'{"email": "eve@acme.example"}'
    authenticated = asyncio.Event()
    read = web.Request.read

    async def reading(of: web.Request) -> bytes:
        authenticated.set()
        return await read(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web.Request, "read", reading)
        reader, writer = await connect(ada)
        writer.write(request(ada, line, *head, body=text))
        await authenticated.wait()
    if ended == "revoked":
        listed = (await ada("GET", "/api/tokens")).body["items"]
        (token_id,) = [token["id"] for token in listed if token["kind"] == "personal"]
        assert (await ada("DELETE", f"/api/tokens/{token_id}")).status == 204
    else:
        assert (await shop.owner("DELETE", f"/api/members/{user_id}")).status == 204
    writer.write(b" " * (32 - len(text)))
    status = int((await reader.read()).split()[1])
    writer.close()
    assert status == (401 if ended == "revoked" else 404)
    assert await fetch(shop.database, "SELECT id FROM app_user WHERE email LIKE 'eve@%'") == []
    assert await fetch(shop.database, "SELECT id FROM api_token WHERE name = 'another'") == []


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(shop: Shop) -> None:
    """Operators are told to look into http_request_failed; nobody outside may write it."""
    head = (b"Content-Type: application/json", b"Content-Length: 400")
    arrived = asyncio.Event()
    read = web.Request.read

    async def reading(of: web.Request) -> bytes:
        arrived.set()
        return await read(of)

    with capture_logs() as lines, pytest.MonkeyPatch.context() as patch:
        patch.setattr(web.Request, "read", reading)
        _, writer = await connect(shop.owner)
        writer.write(request(shop.owner, "POST /api/autopilots", *head, body=b"{"))
        await arrived.wait()
        writer.close()
        async with asyncio.timeout(30):
            while not any(line["event"].startswith("http_request") for line in lines):
                await asyncio.wait([asyncio.ensure_future(writer.wait_closed())], timeout=0.01)
    assert [(line["event"], line["status"]) for line in lines if line["event"].startswith("http_")] == [
        ("http_request", 400)
    ]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_two_mebibytes_is_told_the_limit(shop: Shop, announced: bool) -> None:
    """S13.8."""
    body = b" " * (2 << 20)
    length = b"Content-Length: %d" % len(body)
    framing, sent = (length, body) if announced else (CHUNKED, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    head = (b"Content-Type: application/json", framing)
    status, problem = await answer_to(
        shop.owner, request(shop.owner, "POST /api/autopilots", *head, body=sent)
    )
    assert (status, problem["code"]) == (413, "content_too_large")
    assert "1 MiB" in problem["detail"]


async def test_a_query_that_is_no_text_is_not_read_as_another(shop: Shop) -> None:
    for query in ("job=%FF", "job=%ED%A0%80", "%C3=x"):
        status, problem = await answer_to(
            shop.owner, request(shop.owner, f"GET /api/scheduler/executions?{query}")
        )
        assert (status, problem["code"]) == (400, "malformed"), query


async def test_a_name_is_one_line(shop: Shop) -> None:
    details = set()
    for name in ("two\nlines", "last\n", "bell\a", "\u00a0 ", "\u0085x"):
        answer = await shop.owner("POST", "/api/projects", {"name": name})
        assert answer.problem() == (422, "invalid_value", "name"), repr(name)
        details.add(answer.body["detail"])
    assert details == {"name: must be one line, not blank, without control characters."}
    fine = await shop.owner("POST", "/api/projects", {"name": "Ünïcode ✓"})
    assert fine.status == 201


async def test_a_body_that_is_no_json_is_told_where(shop: Shop) -> None:
    answer = await shop.owner("POST", "/api/autopilots", raw=b'{"title": hunter2}')
    assert answer.problem() == (400, "malformed", None)
    assert answer.body["detail"] == "The body is not JSON that can be read: invalid character (byte 10)."


@pytest.mark.parametrize(
    "capabilities",
    [{"a": "\0"}, {"\0": 1}, {"a": [{"b": "x\0"}]}],
    ids=["value", "key", "inside"],
)
async def test_free_json_that_postgres_cannot_hold_is_refused(
    api: Api, shop: Shop, capabilities: dict[str, Any]
) -> None:
    runtime = await api.program(shop.place, TokenKind.RUNTIME)
    answer = await runtime("POST", "/api/runtime/register", {"name": "odd", "capabilities": capabilities})
    assert answer.problem() == (422, "invalid_value", "capabilities")


async def test_free_json_nests_no_deeper_than_a_webhook(api: Api, shop: Shop) -> None:
    runtime = await api.program(shop.place, TokenKind.RUNTIME)
    for depth, status in ((99, 200), (100, 422), (500, 422)):
        nested = b"[" * depth + b"]" * depth
        answer = await runtime(
            "POST", "/api/runtime/register", raw=b'{"name":"deep","capabilities":{"a":%s}}' % nested
        )
        assert answer.status == status, depth
