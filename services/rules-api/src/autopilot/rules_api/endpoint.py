"""A route as data: what it takes and gives is read from its handler's signature, once, for serving and for OpenAPI.

A handler's first parameter is a `Call` (in a workspace) or a `PersonCall` (a person, in a workspace or in none). Then, by
name: `body` and `query`, structs that the request must fit; any other is a parameter of the path, of type UUID or
str. It returns a struct or a list (JSON; an integer `version` is its ETag too), None (204), or a response of its own
such as a stream. Its docstring, and those of the structs, are the words of the OpenAPI document.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints
from uuid import UUID

import msgspec
from aiohttp import hdrs, web

from autopilot.domain.errors import NotFound
from autopilot.domain.permissions import Action, tokens_for
from autopilot.kit.http import json_response
from autopilot.rules_api import auth, decode
from autopilot.rules_api.auth import Caller, Session
from autopilot.rules_api.deps import Deps
from autopilot.rules_api.problems import Code, malformed
from autopilot.storage.database import Database


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a caller in a workspace."""

    deps: Deps
    caller: Caller
    request: web.Request

    @property
    def database(self) -> Database:
        return self.deps.database


class PersonCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a person; `session.caller` is their place in a workspace, if they name one."""

    deps: Deps
    session: Session
    request: web.Request

    @property
    def database(self) -> Database:
        return self.deps.database


Handler = Callable[..., Awaitable[Any]]

# A code with the status it usually has, or with another that comes first.
Refusal = Code | tuple[int, Code]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A header that a route reads beside the usual ones."""

    name: str
    about: str
    shape: dict[str, Any]


IDEMPOTENCY_KEY = Header(
    name="Idempotency-Key",
    about="A repetition with the same key and body gets the first one's result. At most 255 characters.",
    shape={"maxLength": 255},
)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path, the right that it needs, and what it may refuse beside what its shape implies.

    `versioned`: it heeds If-Match, as every edit with a `version` in its body does. On others the header is refused:
    nobody may believe to be protected who is not.
    """

    method: str
    path: str
    handler: Handler
    right: Action
    status: int
    refusals: tuple[Refusal, ...]
    headers: tuple[Header, ...]
    needs_workspace: bool
    versioned: bool
    body: type[msgspec.Struct]
    query: type[msgspec.Struct] | None
    params: dict[str, type]
    answer: Any


def get(
    path: str,
    handler: Handler,
    *,
    right: Action = Action.READ,
    refusals: tuple[Refusal, ...] = (),
    headers: tuple[Header, ...] = (),
) -> Route:
    return route("GET", path, handler, right=right, status=200, refusals=refusals, headers=headers)


def post(
    path: str,
    handler: Handler,
    *,
    right: Action,
    status: int = 201,
    refusals: tuple[Refusal, ...] = (),
    headers: tuple[Header, ...] = (),
    versioned: bool = False,
) -> Route:
    return route(
        "POST",
        path,
        handler,
        right=right,
        status=status,
        refusals=refusals,
        headers=headers,
        versioned=versioned,
    )


def patch(path: str, handler: Handler, *, right: Action, refusals: tuple[Refusal, ...] = ()) -> Route:
    return route("PATCH", path, handler, right=right, status=200, refusals=refusals)


def delete(
    path: str,
    handler: Handler,
    *,
    right: Action,
    refusals: tuple[Refusal, ...] = (),
    versioned: bool = False,
) -> Route:
    return route("DELETE", path, handler, right=right, status=200, refusals=refusals, versioned=versioned)


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    right: Action,
    status: int,
    refusals: tuple[Refusal, ...] = (),
    headers: tuple[Header, ...] = (),
    versioned: bool = False,
) -> Route:
    """Read the handler's signature; what it cannot mean is refused here, when the module is imported."""
    hints = get_type_hints(handler)
    first, *others = inspect.signature(handler).parameters
    if hints[first] not in (Call, PersonCall):
        raise TypeError(f"{handler.__name__}: the first parameter is a Call or a PersonCall")
    params = {name: hints[name] for name in others if name not in ("body", "query")}
    for name, kind in params.items():
        if f"{{{name}}}" not in path or kind not in (UUID, str):
            raise TypeError(f"{handler.__name__}: {name} is no UUID or str of the path {path}")
    body = hints.get("body", decode.Nothing)
    msgspec.json.Decoder(body)  # a field that cannot be decoded is an error of this program, not of a request
    return Route(
        method=method,
        path=path,
        handler=handler,
        right=right,
        status=status,
        refusals=refusals,
        headers=headers,
        needs_workspace=hints[first] is Call,
        versioned=versioned or "version" in body.__struct_fields__,
        body=body,
        query=hints.get("query"),
        params=params,
        answer=hints["return"],
    )


def bind(deps: Deps, found: Route) -> web.RouteDef:
    """The route as aiohttp serves it: authenticate, read, call, answer."""
    takes_body = found.body is not decode.Nothing
    kinds = tokens_for(found.right)

    async def authenticated(request: web.Request) -> Call | PersonCall:
        session = await auth.authenticate(deps.database, request, kinds)
        if found.needs_workspace:
            return Call(deps=deps, caller=session.caller, request=request)
        return PersonCall(deps=deps, session=session, request=request)

    async def serve(request: web.Request) -> web.StreamResponse:
        call = await authenticated(request)
        arguments: dict[str, Any] = _path_of(request, found.params)
        decode.require_utf8(request)
        query = decode.read_query(request.query, found.query or decode.Nothing)
        if found.query is not None:
            arguments["query"] = query
        if found.method != "GET":
            if not found.versioned and request.headers.get(hdrs.IF_MATCH, "*").strip() != "*":
                raise malformed("If-Match is not heeded here: leave it out.", "If-Match")
            is_late = not request.content.is_eof()
            body = await decode.read_body(request, found.body)
            if is_late:  # meanwhile the token may have been revoked, or its person sent away
                call = await authenticated(request)
            if takes_body:
                arguments["body"] = body
        answer = await found.handler(call, **arguments)
        if isinstance(answer, web.StreamResponse):
            return answer
        if answer is None:
            return web.Response(status=204)
        headers = {"Cache-Control": "no-store"}  # tokens and URLs that are credentials are in some answers
        version = getattr(answer, "version", None)
        if isinstance(version, int):
            headers["ETag"] = f'"{version}"'
        return json_response(answer, status=found.status, headers=headers)

    return web.route(found.method, found.path, serve)


def _path_of(request: web.Request, params: dict[str, type]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, kind in params.items():
        text = request.match_info[name]
        if kind is UUID:
            if not auth.is_id(text):
                raise NotFound
            values[name] = UUID(text)
        else:
            values[name] = text
    return values
