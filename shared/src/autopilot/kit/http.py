"""What the HTTP servers share: problems (RFC 9457), request ids, a log without tokens, limits (S9.12, S13)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from autopilot.domain.errors import AutopilotError, InvalidValue
from autopilot.kit import log, metrics
from autopilot.kit.ids import uuid7

MAX_HEADER_BYTES = 16 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RETRY_AFTER_S = 2
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)

_logger = log.get_logger()
_requests = metrics.histogram("http_request_seconds", "Requests answered", ["method", "route", "status"])
_observers: dict[tuple[str, str, int], Callable[[float], None]] = {}


class Problem(AutopilotError):
    """The request cannot be answered as asked. `code` is stable for programs; `facts` go into the problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
        **facts: object,
    ) -> None:
        self.status = status
        self.code = code
        self.facts = facts
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)
        super().__init__(message)


ToProblem = Callable[[AutopilotError], Problem | None]


def json_response(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Anything msgspec can encode, as JSON."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, headers=headers, content_type="application/json"
    )


def problem_document(problem: Problem, request_id: str) -> bytes:
    """The problem as RFC 9457 has it."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": _phrase(problem.status),
        "status": problem.status,
        "code": problem.code,
        "detail": problem.message,
        "request_id": request_id,
        **problem.facts,
    }
    return msgspec.json.encode(document)


def problem_response(problem: Problem, request_id: str) -> web.Response:
    """The problem as `application/problem+json`."""
    return web.Response(
        body=problem_document(problem, request_id),
        status=problem.status,
        headers=problem.headers,
        content_type="application/problem+json",
    )


def server_middleware(*, to_problem: ToProblem | None = None) -> Middleware:
    """The outermost middleware of every server: limits headers, names the request, answers errors, logs and counts.

    `to_problem` may turn a service's own errors into problems; what it leaves is 422 for InvalidValue, 503 for
    infrastructure and 500, without detail, for everything else. The log names the route, never the path.
    """
    translate = to_problem or (lambda _error: None)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        request_id = _request_id(request)
        request[REQUEST_ID] = request_id
        log.bind(request_id=request_id)  # aiohttp gives each request a context of its own
        response = await _answer(request, handler, request_id, translate)
        if not response.prepared:
            response.headers["X-Request-Id"] = request_id
        _account(request, response, time.perf_counter() - began)
        return response

    return middleware


def _account(request: web.Request, response: web.StreamResponse, took_s: float) -> None:
    method = request.method if request.method in _METHODS else "other"
    seen = (method, _route(request), response.status)
    observe = _observers.get(seen)
    if observe is None:
        observe = _observers[seen] = _requests.labels(*map(str, seen)).observe
    observe(took_s)
    report = _logger.debug if response.status < 400 else _logger.info
    report("http_request", method=seen[0], route=seen[1], status=seen[2], took_ms=round(took_s * 1000, 1))


async def _answer(
    request: web.Request, handler: Handler, request_id: str, translate: ToProblem
) -> web.StreamResponse:
    try:
        if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > MAX_HEADER_BYTES:
            return problem_response(headers_too_large(), request_id)
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return problem_response(problem_of(error), request_id)
    except AutopilotError as error:
        return problem_response(_to_problem(error, translate), request_id)
    except Exception:
        _logger.exception("http_request_failed", route=_route(request))
        return problem_response(_internal_error(), request_id)


def _to_problem(error: AutopilotError, translate: ToProblem) -> Problem:
    if isinstance(error, Problem):
        return error
    translated = translate(error)
    if translated is not None:
        return translated
    if isinstance(error, InvalidValue):
        return Problem(422, error.code, error.message, field=error.field)
    if error.infrastructure:
        _logger.warning("http_infrastructure_error", error=type(error).__name__, reason=str(error))
        return Problem(503, "unavailable", "Try again in a moment.", retry_after_s=_RETRY_AFTER_S)
    _logger.error("http_request_failed", exc_info=error)
    return _internal_error()


def _internal_error() -> Problem:
    return Problem(500, "internal_error", "Something went wrong here.")


def headers_too_large(message: str = "The headers are larger than 16 KiB.") -> Problem:
    return Problem(431, "headers_too_large", message)


def problem_of(error: web.HTTPException) -> Problem:
    """What aiohttp itself refuses, in our words: its own may quote the request."""
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    phrase = _phrase(error.status)
    return Problem(error.status, phrase.lower().replace(" ", "_"), f"{phrase}.", headers=headers)


def _phrase(status: int) -> str:
    if status == 413:
        return "Content Too Large"
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _request_id(request: web.Request) -> str:
    given = request.headers.get("X-Request-Id", "")
    return given if _REQUEST_ID.fullmatch(given) else str(uuid7())


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unmatched"
