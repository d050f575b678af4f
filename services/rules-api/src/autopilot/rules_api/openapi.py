"""The OpenAPI 3.1 document, derived from the routes: their structs, docstrings, rights and refusals (S13)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final
from uuid import UUID

import msgspec
from aiohttp import web

from autopilot.domain.permissions import ALLOWED, Action, Standing, tokens_for
from autopilot.rules_api.auth import WORKSPACE_HEADER
from autopilot.rules_api.decode import Nothing
from autopilot.rules_api.endpoint import IDEMPOTENCY_KEY, Header, Route
from autopilot.rules_api.paging import PageQuery
from autopilot.rules_api.problems import Code
from autopilot.rules_api.shapes import REFERENCE, ProblemDocument, is_json, name_in, shapes_of

PATH: Final = "/openapi.json"
_IF_MATCH: Final = Header(
    name="If-Match",
    about="The version that must still stand, as its ETag told it: 409 `edit_conflict` otherwise.",
    shape={"pattern": r'^(\*|(W/)?"[0-9]{1,18}")$'},
)
_DESCRIPTION: Final = """\
Rules, what they ran, and who may do what. Send a token as `Authorization: Bearer …` and name the workspace in
`X-Workspace`; a token that is bound to one workspace needs no header. Lists come newest first, a page at a time:
`next_cursor` of one page is `cursor` of the next. PATCH changes what is sent and nothing else. An unknown field, a wrong
type or a query name given twice is 400, a value that is refused is 422, and both name the field. What is in another workspace
is 404. Every refusal is a problem document with a code that keeps its meaning."""

# Our own rules by their numbers, which mean nothing to whoever reads the document.
_RULES_NAMED = re.compile(r" \((?:S|HAZARDS )\d[\d.]*(?:, S?\d[\d.]*)*\)")


def refusals_of(route: Route) -> dict[int, set[Code]]:
    """Every problem that a route may answer with, by status: what its shape implies and what it declares."""
    codes: set[Code] = {
        Code.MALFORMED,
        Code.UNAUTHORIZED,
        Code.WRONG_TOKEN_KIND,
        Code.NOT_FOUND,
        Code.HEADERS_TOO_LARGE,
        Code.INTERNAL_ERROR,
        Code.UNAVAILABLE,
    }
    if route.right is not Action.RUNTIME_SERVE:
        codes.add(Code.WORKSPACE_REQUIRED)
        if route.method != "GET" or Standing.MEMBER not in ALLOWED[route.right]:
            codes.add(Code.FORBIDDEN)
    if route.query is not None and issubclass(route.query, PageQuery):
        codes.add(Code.BAD_CURSOR)
    if route.method != "GET":
        codes |= {Code.BODY_TIMEOUT, Code.CONTENT_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE}
    if route.body is not Nothing or route.query is not None:
        codes.add(Code.INVALID_VALUE)
    if IDEMPOTENCY_KEY in route.headers:
        codes |= {Code.INVALID_VALUE, Code.IDEMPOTENCY_KEY_REUSED}
    if route.versioned:
        codes.add(Code.EDIT_CONFLICT)
    by_status: dict[int, set[Code]] = {}
    for status, code in [(code.status, code) for code in codes] + [
        refusal if isinstance(refusal, tuple) else (refusal.status, refusal) for refusal in route.refusals
    ]:
        by_status.setdefault(status, set()).add(code)
    return by_status


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document as JSON values."""
    schemas, components = shapes_of(routes)
    responses: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for route in sorted(routes, key=lambda route: route.path):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, routes, schemas, components, responses
        )
    used = {route.query for route in routes if route.query is not None}
    for query in used:
        components.pop(name_in(schemas[query]), None)
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Autopilot",
            "version": version("autopilot-rules-api"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": name} for name in sorted({_tag(route) for route in routes})],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A personal, service or runtime token.",
                }
            },
            "parameters": {"Workspace": _workspace_parameter()},
            "responses": dict(sorted(responses.items())),
            "schemas": dict(sorted(components.items())),
        },
    }
    told: dict[str, Any] = _without_rules(made)
    return told


def _without_rules(given: Any) -> Any:
    """The same without mentions of rules in its descriptions."""
    if isinstance(given, list):
        return [_without_rules(item) for item in given]
    if not isinstance(given, dict):
        return given
    return {
        name: _RULES_NAMED.sub("", item)
        if name == "description" and isinstance(item, str)
        else _without_rules(item)
        for name, item in given.items()
    }


def attach(app: web.Application, routes: Sequence[Route]) -> None:
    """Serve the document, to anybody: it holds nothing that the source does not."""
    made: list[bytes] = []

    async def serve(_request: web.Request) -> web.Response:
        if not made:
            made.append(msgspec.json.encode(document(routes)))
        return web.Response(body=made[0], content_type="application/json")

    app.router.add_get(PATH, serve)


def _operation(
    route: Route,
    routes: Sequence[Route],
    schemas: dict[Any, dict[str, Any]],
    components: dict[str, Any],
    responses: dict[str, Any],
) -> dict[str, Any]:
    told = inspect.getdoc(route.handler) or ""
    answers: dict[str, Any] = {str(_success(route)): _answer(route, routes, schemas)}
    for status, codes in sorted(refusals_of(route).items()):
        name = ".".join([str(status), *sorted(codes)])
        responses.setdefault(name, _problem(status, codes))
        answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
    operation: dict[str, Any] = {
        "operationId": _id_of(route),
        "tags": [_tag(route)],
        "summary": _id_of(route).replace("_", " ").capitalize(),
        "description": "\n\n".join(text for text in (told, _right_in_words(route.right)) if text),
        "parameters": [*_parameters(route, schemas, components)],
        "responses": answers,
        "x-right": route.right.value,
    }
    if route.body is not Nothing:
        operation["requestBody"] = {
            "required": bool(components[name_in(schemas[route.body])]["required"]),
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return operation


def _parameters(
    route: Route, schemas: dict[Any, dict[str, Any]], components: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", route.path):
        text = (
            {"type": "string", "format": "uuid"}
            if route.params[name] is UUID
            else {"type": "string", "minLength": 1}
        )
        yield {"name": name, "in": "path", "required": True, "schema": text}
    if route.query is not None:
        shape = components[name_in(schemas[route.query])]
        for name, schema in shape["properties"].items():
            yield _query_parameter(name, schema, required=name in shape["required"])
    for header in (*route.headers, *([_IF_MATCH] if route.versioned else [])):
        shape = {"type": "string", **header.shape}
        yield {"name": header.name, "in": "header", "description": header.about, "schema": shape}
    if route.right is not Action.RUNTIME_SERVE:
        yield {"$ref": "#/components/parameters/Workspace"}


def _query_parameter(name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    """A query has no null: what is not given is left out."""
    shown = {
        key: value
        for key, value in schema.items()
        if key != "description" and not (key == "default" and value is None)
    }
    kinds = [kind for kind in shown.pop("anyOf", []) if kind != {"type": "null"}]
    if kinds:
        shown |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    parameter = {"name": name, "in": "query", "required": required, "schema": shown}
    if "description" in schema:
        parameter["description"] = schema["description"]
    return parameter


def _answer(route: Route, routes: Sequence[Route], schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if route.answer is type(None):
        return {"description": "Done."}
    if not is_json(route):
        return {
            "description": "A stream that stays open.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    answer: dict[str, Any] = {
        "description": "Made." if route.status == 201 else "Done.",
        "content": {"application/json": {"schema": schemas[route.answer]}},
    }
    fields = getattr(route.answer, "__struct_fields__", ())
    if "version" in fields:
        answer["headers"] = {
            "ETag": {"description": "`version`, for If-Match.", "schema": {"type": "string"}}
        }
    if route.method == "POST" and (links := dict(_links(route, routes, fields))):
        answer["links"] = links
    return answer


def _links(
    route: Route, routes: Sequence[Route], fields: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What can be done with the thing just made: each route under its own address."""
    for other in routes:
        under = re.match(re.escape(route.path) + r"/\{(\w+)\}", other.path)
        if under is None or not (held := {"id", under[1]} & set(fields)):
            continue
        if other.params.keys() != route.params.keys() | {under[1]}:
            continue  # it needs more than is known here
        yield (
            _id_of(other),
            {
                "operationId": _id_of(other),
                "parameters": {
                    **{name: f"$request.path.{name}" for name in route.params},
                    under[1]: f"$response.body#/{min(held)}",
                },
            },
        )


def _problem(status: int, codes: set[Code]) -> dict[str, Any]:
    schema = {
        "allOf": [
            {"$ref": REFERENCE.format(name=ProblemDocument.__name__)},
            {"properties": {"status": {"const": status}, "code": {"enum": sorted(codes)}}},
        ]
    }
    described = {
        "description": " ".join(f"`{code}`: {code.meaning}" for code in sorted(codes)),
        "content": {"application/problem+json": {"schema": schema}},
    }
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        seconds = {
            "description": "When to try again, in seconds.",
            "schema": {"type": "integer", "minimum": 1},
        }
        described["headers"] = {"Retry-After": seconds}
    return described


def _right_in_words(right: Action) -> str:
    kinds = ", ".join(sorted(kind.value for kind in tokens_for(right)))
    if right is Action.SELF:
        return f"For oneself. Tokens: {kinds}."
    if right is Action.RUNTIME_SERVE:
        return "For runtimes alone. Tokens: runtime."
    who = ", ".join(standing.value for standing in Standing if standing in ALLOWED[right])
    return f"Needs the right `{right.value}` ({who}). Tokens: {kinds}."


def _workspace_parameter() -> dict[str, Any]:
    return {
        "name": WORKSPACE_HEADER,
        "in": "header",
        "description": "The workspace, by slug or id; needed unless the token is bound to one.",
        "schema": {"type": "string"},
    }


def _success(route: Route) -> int:
    return 204 if route.answer is type(None) else route.status


def _id_of(route: Route) -> str:
    name: str = getattr(route.handler, "__name__")  # noqa: B009 - a callable need not have one
    return name


def _tag(route: Route) -> str:
    module: str = route.handler.__module__
    return module.rpartition(".")[2].replace("_", " ")
