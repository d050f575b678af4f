"""What every HTTP server answers when things go wrong, and what it never says (S9.12, S13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from autopilot.domain.errors import AutopilotError, InfrastructureError, InvalidValue
from autopilot.kit import http, metrics
from autopilot.kit.server import port_of, serve

TOKEN = "awt_" + "y" * 43


class Conflict(AutopilotError):
    """Somebody was faster."""


def to_problem(error: AutopilotError) -> http.Problem | None:
    return http.Problem(409, "conflict", error.message) if isinstance(error, Conflict) else None


ERRORS: dict[str, Exception] = {
    "problem": http.Problem(429, "too_many", "Slower.", retry_after_s=7, limit=60),
    "value": InvalidValue("title", "The title is empty."),
    "down": InfrastructureError("postgresql://me:hunter2@db is away"),
    "mine": Conflict(),
    "unknown": AutopilotError("internal hunter2"),
    "bug": KeyError("hunter2"),
}


async def answer(request: web.Request) -> web.Response:
    name = request.match_info["token"]
    if name in ERRORS:
        raise ERRORS[name]
    return http.json_response({"length": len(await request.read())})


@pytest.fixture
async def server() -> AsyncIterator[str]:
    app = web.Application(middlewares=[http.server_middleware(to_problem=to_problem)], client_max_size=1000)
    app.router.add_route("*", "/hooks/{token}", answer)
    app.router.add_post("/only-post", answer)
    runner = await serve(app, "127.0.0.1", 0, what="test")
    yield f"http://127.0.0.1:{port_of(runner)}"
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def fetch(client: ClientSession, url: str, method: str = "GET", **options: Any) -> tuple[int, Any, Any]:
    async with client.request(method, url, **options) as response:
        return response.status, await response.json(content_type=None), response.headers


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("problem", 429, "too_many"),
        ("value", 422, "invalid_value"),
        ("down", 503, "unavailable"),
        ("mine", 409, "conflict"),
        ("unknown", 500, "internal_error"),
        ("bug", 500, "internal_error"),
    ],
)
async def test_every_error_is_a_problem_with_a_stable_code(
    server: str, client: ClientSession, name: str, status: int, code: str
) -> None:
    got, problem, headers = await fetch(client, f"{server}/hooks/{name}")
    assert (got, problem["status"], problem["code"]) == (status, status, code)
    assert headers["Content-Type"].startswith("application/problem+json")
    assert problem["request_id"] == headers["X-Request-Id"]
    assert problem["title"]
    assert "hunter2" not in str(problem)


async def test_a_problem_carries_its_facts_and_when_to_come_again(server: str, client: ClientSession) -> None:
    _, problem, headers = await fetch(client, f"{server}/hooks/problem")
    assert (problem["limit"], headers["Retry-After"]) == (60, "7")
    _, problem, headers = await fetch(client, f"{server}/hooks/value")
    assert (problem["field"], problem["detail"]) == ("title", "The title is empty.")
    _, _, headers = await fetch(client, f"{server}/hooks/down")
    assert int(headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("method", "path", "size", "status", "code"),
    [
        ("GET", "/nowhere", 0, 404, "not_found"),
        ("GET", "/only-post", 0, 405, "method_not_allowed"),
        ("POST", "/hooks/a", 2000, 413, "content_too_large"),
    ],
)
async def test_what_the_server_itself_refuses_is_a_problem_too(
    server: str, client: ClientSession, method: str, path: str, size: int, status: int, code: str
) -> None:
    got, problem, headers = await fetch(client, server + path, method, data=b"x" * size)
    assert (got, problem["code"]) == (status, code)
    assert ("Allow" in headers) == (status == 405)


async def test_an_expectation_it_does_not_know_is_refused_in_our_words(
    server: str, client: ClientSession
) -> None:
    status, problem, _ = await fetch(client, f"{server}/hooks/a", "POST", headers={"Expect": "hunter2"})
    assert (status, problem["code"]) == (417, "expectation_failed")
    assert "hunter2" not in str(problem)


async def test_headers_beyond_16_kib_are_refused(server: str, client: ClientSession) -> None:
    """S9.16."""
    many = {f"X-Filler-{number}": "v" * 1000 for number in range(20)}
    status, problem, _ = await fetch(client, f"{server}/hooks/a", headers=many)
    assert (status, problem["code"]) == (431, "headers_too_large")
    short = {f"X-{number}": "v" for number in range(140)}
    for path, headers in (
        ("/hooks/a", {"X-Filler": "v" * 20_000}),
        ("/" + "v" * 20_000, {}),
        ("/hooks/a", short),
    ):
        status, problem, _ = await fetch(client, server + path, headers=headers)
        assert (status, problem["code"]) == (431, "headers_too_large")


async def test_a_sane_request_id_is_kept_and_another_is_replaced(server: str, client: ClientSession) -> None:
    _, _, headers = await fetch(client, f"{server}/hooks/a", headers={"X-Request-Id": "abc-1"})
    assert headers["X-Request-Id"] == "abc-1"
    _, _, headers = await fetch(client, f"{server}/hooks/a", headers={"X-Request-Id": "a b" * 100})
    assert len(headers["X-Request-Id"]) == 36


async def test_neither_log_nor_metrics_hold_the_path(server: str, client: ClientSession) -> None:
    """S9.12."""
    with capture_logs() as lines:
        await fetch(client, f"{server}/hooks/{TOKEN}")
        await fetch(client, f"{server}/nowhere/{TOKEN}")
        await fetch(client, f"{server}/hooks/bug")
    assert [line["route"] for line in lines if line["event"] == "http_request"] == [
        "/hooks/{token}",
        "unmatched",
        "/hooks/{token}",
    ]
    assert TOKEN not in str(lines)
    assert TOKEN.encode() not in metrics.render()


async def test_an_unusual_method_makes_no_new_metric(server: str, client: ClientSession) -> None:
    await fetch(client, f"{server}/hooks/a", "PROPFIND")
    assert b"PROPFIND" not in metrics.render()
    assert b'method="other"' in metrics.render()


@pytest.mark.parametrize(
    ("start", "refusal"),
    [
        (f"INVENTED /hooks/{TOKEN} HTTP/1.1", (400, "bad_request")),
        (f"GET /hooks/{TOKEN} HTTP/9", (400, "bad_request")),
        (f"GET /{TOKEN}{'x' * 20_000} HTTP/1.1", (431, "headers_too_large")),
    ],
    ids=["method", "version", "length"],
)
async def test_a_request_that_cannot_be_parsed_is_not_repeated(
    server: str, start: str, refusal: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    """S9.12: the parser's own words quote the request line."""
    port = int(server.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with capture_logs() as lines:
        writer.write(f"{start}\r\nHost: a\r\n\r\n".encode())
        answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    assert answer.split()[1] == str(refusal[0])
    assert f'"code":"{refusal[1]}"' in answer
    assert "awt_" not in answer + str(lines) + caplog.text
    assert [line["event"] for line in lines] == ["http_request_broken"]


async def test_the_lines_of_a_request_carry_its_id_and_no_other_s(server: str) -> None:
    async with ClientSession() as session:
        with capture_logs(processors=[merge_contextvars]) as lines:
            await fetch(session, f"{server}/hooks/bug", headers={"X-Request-Id": "one"})
            await fetch(session, f"{server}/hooks/unknown", headers={"X-Request-Id": "two"})
    assert [line["request_id"] for line in lines if line["event"] == "http_request_failed"] == ["one", "two"]
