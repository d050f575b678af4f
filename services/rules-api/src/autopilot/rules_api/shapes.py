"""The shapes that the OpenAPI document tells of: the structs that routes name, as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import inspect as types

from autopilot.rules_api.decode import Nothing
from autopilot.rules_api.endpoint import Route
from autopilot.rules_api.problems import Code

REFERENCE: Final = "#/components/schemas/{name}"


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal (RFC 9457). `code` is for programs; `field` names what is wrong in the request, if one thing is."""

    type: str
    title: str
    status: int
    code: Code
    detail: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET


def shapes_of(routes: Sequence[Route]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """The schema of each type that routes name, and the components that they refer to."""
    wanted: list[Any] = [ProblemDocument]
    for route in routes:
        wanted += [kind for kind in (route.body, route.query) if kind is not None and kind is not Nothing]
        if is_json(route):
            wanted.append(route.answer)
    wanted_types = list(dict.fromkeys(wanted))
    made, components = msgspec.json.schema_components(wanted_types, ref_template=REFERENCE)
    instants = {(cls, name) for kind in wanted_types for cls, name in _instants(types.type_info(kind))}
    for cls, name in instants:
        _mark_instant(components[cls]["properties"][name])
    components["Code"]["description"] = "\n".join(
        ["What went wrong:", "", *(f"- `{code}`: {code.meaning}" for code in Code)]
    )
    return dict(zip(wanted_types, made, strict=True)), components


def _instants(shape: types.Type, seen: set[Any] | None = None) -> Iterator[tuple[str, str]]:
    """The fields of the structs within a type that hold an instant, which msgspec does not say in its schemas."""
    seen = set() if seen is None else seen
    if isinstance(shape, types.StructType):
        if shape.cls in seen:
            return
        seen.add(shape.cls)
        for field in shape.fields:
            parts = field.type.types if isinstance(field.type, types.UnionType) else (field.type,)
            if any(isinstance(part, types.DateTimeType) for part in parts):
                yield shape.cls.__name__, field.encode_name
            for part in parts:
                yield from _instants(part, seen)
    elif isinstance(shape, types.ListType):
        item = shape.item_type
        for part in item.types if isinstance(item, types.UnionType) else (item,):
            yield from _instants(part, seen)
    elif isinstance(shape, types.Metadata):
        yield from _instants(shape.type, seen)


def _mark_instant(schema: dict[str, Any]) -> None:
    for part in schema.get("anyOf", [schema]):
        if part.get("type") == "string":
            part["format"] = "date-time"


def is_json(route: Route) -> bool:
    return route.answer is not type(None) and route.answer is not web.StreamResponse


def name_in(schema: dict[str, Any]) -> str:
    name: str = schema["$ref"].rpartition("/")[2]
    return name
