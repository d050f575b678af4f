"""Every body and query of every route, bent in every way that its struct forbids: a clear 4xx, and nothing changed (S13.2, S13.8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.support.api import Answer, Client, running_api
from tests.support.digest import digest
from tests.support.everybody import BODIES, Walk, make_walk

from autopilot.domain.permissions import Action
from autopilot.rules_api.app import ROUTES
from autopilot.rules_api.decode import Nothing
from autopilot.rules_api.endpoint import Route
from autopilot.rules_api.openapi import document

DOCUMENT = document(ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
WITH_BODY = [route for route in ROUTES if route.method != "GET"]
WITH_QUERY = [route for route in ROUTES if route.query is not None]


class Bent(msgspec.Struct, frozen=True):
    """A value that a field refuses, with the status and, for a choice, what was meant."""

    field: str
    value: Any
    status: int
    meant: str | None = None


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema behind a reference, of an optional field the part that is not null."""
    if "anyOf" in schema:
        schema = next(part for part in schema["anyOf"] if part != {"type": "null"})
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def bend(name: str, schema: dict[str, Any]) -> Iterator[Bent]:
    told = resolved(schema)
    kind = told.get("type")
    if "enum" in told:
        choice = str(told["enum"][0])
        yield Bent(name, choice + "x", 422, choice)
        if kind is None:
            yield Bent(name, ["a"], 400)
    elif kind is not None:
        wrong = 5 if kind in ("string", "object", "array", "boolean") or isinstance(kind, list) else "five"
        yield Bent(name, wrong, 400)
    if told.get("format") == "uuid":
        yield Bent(name, "not-an-id", 400)
    elif kind == "string" and "maxLength" in told:
        yield Bent(name, "x" * (told["maxLength"] + 1), 422)
    if kind == "string" and told.get("minLength"):
        yield Bent(name, "", 422)
    if kind == "array" and "maxItems" in told and resolved(told["items"]).get("type") == "string":
        item = "01a22d2f-0000-7000-8000-000000000000"
        yield Bent(name, [item] * (told["maxItems"] + 1), 422)
    for bound, beyond in (("minimum", -1), ("maximum", 1)):
        if bound in told:
            yield Bent(name, told[bound] + beyond, 422)


@pytest.fixture
async def walk(postgres_url: str) -> AsyncIterator[Walk]:
    async with running_api(postgres_url) as api:
        yield await make_walk(api)


def caller_of(walk: Walk, route: Route) -> Client:
    name = {Action.RUNTIME_SERVE: "runtime", Action.AGENT_SHARE: "creator"}.get(route.right, "owner")
    return next(persona.client for persona in walk.personas if persona.name == name)


def address(walk: Walk, route: Route) -> str:
    return route.path.format(**walk.ids)


def body_of(walk: Walk, route: Route) -> dict[str, Any]:
    key = f"{route.method} {route.path}"
    return dict(BODIES[key](walk)) if key in BODIES else {}  # type: ignore[call-overload]


async def test_no_field_takes_what_its_shape_forbids(walk: Walk) -> None:
    """S13.2: 400 for a wrong type and an unknown field, 422 for a refused value, by the field's name, with what was meant."""
    before = await digest(walk.shop.database)
    wrong: list[str] = []
    tried = 0
    for route in WITH_BODY:
        call, path, good = caller_of(walk, route), address(walk, route), body_of(walk, route)
        stray = await call(route.method, path, {**good, "nmae": "x"})
        if stray.problem() != (400, "malformed", "nmae"):
            wrong.append(f"{route.method} {route.path} nmae: {stray.problem()}")
        if route.body is Nothing:
            continue
        for name, schema in SCHEMAS[route.body.__name__]["properties"].items():
            for bent in bend(name, schema):
                answer = await call(route.method, path, {**good, name: bent.value})
                tried += 1
                wrong += judge(f"{route.method} {route.path}", bent, answer)
    assert wrong == []
    assert tried > 200
    assert await digest(walk.shop.database) == before


async def test_no_query_takes_what_its_shape_forbids(walk: Walk) -> None:
    """S13, S13.2."""
    before = await digest(walk.shop.database)
    wrong: list[str] = []
    for route in WITH_QUERY:
        call, path = caller_of(walk, route), address(walk, route)
        for query, field in (("colour=blue", "colour"), ("limit=1&limit=2", "limit")):
            answer = await call(route.method, f"{path}?{query}")
            if field == "limit" and "limit" not in route.query.__struct_fields__:  # type: ignore[union-attr]
                continue
            if answer.problem() != (400, "malformed", field):
                wrong.append(f"{route.method} {route.path}?{query}: {answer.problem()}")
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        for parameter in operation["parameters"]:
            if parameter.get("in") != "query":
                continue
            for bent in bend(parameter["name"], parameter["schema"]):
                if not isinstance(bent.value, int | str) or (bent.value == 5 and bent.status == 400):
                    continue  # in a query everything is text
                answer = await call(route.method, f"{path}?{bent.field}={bent.value}")
                wrong += judge(f"{route.method} {route.path}", bent, answer)
    assert wrong == []
    assert await digest(walk.shop.database) == before


def judge(what: str, bent: Bent, answer: Answer) -> list[str]:
    shown = f"{what} {bent.field}={str(bent.value)[:40]!r}: {answer.status} {answer.body}"
    told = str(answer.body.get("detail", "")).replace("Did you", "did you")
    if answer.status != bent.status or not str(answer.body.get("field", "")).startswith(bent.field):
        return [shown]
    if bent.meant is not None and f"did you mean {bent.meant}?" not in told:
        return [shown]
    if isinstance(bent.value, str) and len(bent.value) > 3 and bent.value in told:
        return [f"repeats what was sent: {shown}"]
    return []


NO_OBJECTS = [
    (b"[]", "application/json", 400, "malformed"),
    (b"null", "application/json", 400, "malformed"),
    (b'{"name": ', "application/json", 400, "malformed"),
    (b'{"name": "\xff\xfe"}', "application/json", 400, "malformed"),
    (b'{"name": "\xed\xa0\x80"}', "application/json", 400, "malformed"),
    (b'{"name": NaN}', "application/json", 400, "malformed"),
    (b"[" * 100_000, "application/json", 400, "malformed"),
    (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    (b'{"name": "x"}', "text/plain", 415, "unsupported_media_type"),
    (b'{"name": "' + b"x" * 10_000_000 + b'"}', "application/json", 413, "content_too_large"),
]


async def test_a_body_that_is_no_object_of_json_is_refused_everywhere(walk: Walk) -> None:
    """S13.2, S13.8."""
    before = await digest(walk.shop.database)
    for raw, content_type, status, code in NO_OBJECTS:
        for route in WITH_BODY if len(raw) < 1000 else WITH_BODY[:3]:
            answer = await caller_of(walk, route)(
                route.method, address(walk, route), raw=raw, headers={"Content-Type": content_type}
            )
            assert answer.problem()[:2] == (status, code), (route.path, raw[:20], answer.body)
    assert await digest(walk.shop.database) == before


async def test_ids_of_another_workspace_name_nothing_in_a_body(walk: Walk) -> None:
    """S6.6, S4.7: 422 on the field, the same as for an id that nobody has."""
    other = await make_other(walk)
    before = await digest(walk.shop.database)
    for route in WITH_BODY:
        if route.body is Nothing:
            continue
        for name in other.keys() & set(route.body.__struct_fields__):
            call, path, good = caller_of(walk, route), address(walk, route), body_of(walk, route)
            answer = await call(route.method, path, {**good, name: other[name]})
            if route.path == "/api/runtime/bye":
                continue  # to say good-bye for nobody is no fault; the digest below tells that it was for nobody
            assert answer.status in (404, 422), (route.path, name, answer.body)
            assert other[name] not in str(answer.body)
    assert await digest(walk.shop.database) == before


async def make_other(walk: Walk) -> dict[str, str]:
    place = await walk.shop.api.place("elsewhere")
    agent = (await place.owner("POST", "/api/agents", {"name": "far", "visibility": "workspace"})).body["id"]
    return {
        "assignee_id": agent,
        "leader_id": agent,
        "project_id": (await place.owner("POST", "/api/projects", {"name": "far"})).body["id"],
        "runtime_id": await walk.shop.api.runtime(place, "far"),
        "user_id": str(place.owner_id),
        "creator_id": str(place.owner_id),
    }
