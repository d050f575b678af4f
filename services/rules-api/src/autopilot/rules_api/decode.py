"""Bodies and queries into structs; what does not fit is refused by the name of its field (S13.2)."""

from __future__ import annotations

import asyncio
import difflib
import re
import types
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from multidict import MultiMapping

from autopilot.domain.errors import InvalidValue
from autopilot.domain.webhook.body import MAX_DEPTH
from autopilot.kit.http import Problem
from autopilot.rules_api.problems import malformed
from autopilot.rules_api.wire.common import LINE, Body

B = TypeVar("B", bound=msgspec.Struct)

MAX_BODY_BYTES = 1024 * 1024
BODY_WITHIN_S = 10.0

_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")
_NAMED = re.compile(r"^Object (?P<fault>missing required|contains unknown) field `(?P<name>[^`]*)`")
# A limit of a type that fits; everything else that msgspec refuses is of the wrong shape.
_LIMIT = re.compile(
    r"^Expected `\w+` (?:of length )?(?:<=|>=|<|>|matching|multiple)|^Expected `\w+` that's a multiple"
)
_ENUM = "Invalid enum value"
_PATTERNS = {
    repr(r"\S"): "must not be blank",
    repr(LINE): "must be one line, not blank, without control characters",
}


class Nothing(Body, frozen=True, kw_only=True):
    """The body of a request that takes no fields."""


async def read_body(request: web.Request, wanted: type[B]) -> B:
    """The body as `wanted`; none at all counts as an empty object."""
    raw = await _read(request)
    if raw and (request.content_type != "application/json" or "Content-Encoding" in request.headers):
        raise Problem(415, "unsupported_media_type", "Send the body as application/json, not encoded.")
    try:
        body = msgspec.json.decode(raw or b"{}", type=wanted)
    except msgspec.ValidationError as error:
        raise refusal(error, wanted) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(f"The body is not JSON that can be read{_fault_of(error)}.") from error
    _refuse_nul(body, "")
    return body


async def _read(request: web.Request) -> bytes:
    """The raw body. A client that is too slow, or leaves in the middle of it, is no failure of ours."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except TimeoutError:
        raise Problem(408, "body_timeout", "The body did not arrive in time.") from None
    except (web.RequestPayloadError, OSError):
        raise malformed("The body could not be read to its end.", "body") from None


def _too_large() -> Problem:
    return Problem(413, "content_too_large", "The body is larger than 1 MiB.")


def _fault_of(error: Exception) -> str:
    """What the decoder says of malformed JSON, which names a place and quotes nothing."""
    said = str(error)
    fault = said.removeprefix("JSON is malformed: ")
    return f": {fault}" if fault != said else ""


def require_utf8(request: web.Request) -> None:
    """400 for a query that is no UTF-8, which otherwise would be read as something that nobody asked for."""
    try:
        unquote_to_bytes(request.rel_url.raw_query_string).decode()
    except UnicodeDecodeError:
        raise malformed("The query is not UTF-8.") from None


def read_query(query: MultiMapping[str], wanted: type[B]) -> B:
    """The query string as `wanted`; a name given twice is refused."""
    values: dict[str, str] = {}
    for name, value in query.items():
        if name in values:
            raise malformed(f"{name} is given more than once.", name)
        values[name] = value
    return fit(values, wanted)


def fit(values: dict[str, str], wanted: type[B]) -> B:
    """Texts by name as `wanted`, numbers and yes or no read from their text; an instant is no number, no text is null."""
    given = dict(values)
    for name, kind in _kinds(wanted).items():
        if kind is datetime and ":" not in given.get(name, ":"):
            raise malformed(f"{name}: expected an RFC 3339 instant such as 2026-01-31T09:00:00Z.", name)
        if kind is not str and given.get(name, "").lower() == "null":
            given[name] = ""  # which is nothing at all, where "null" would be read as None
    try:
        found = msgspec.convert(given, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, wanted) from error
    _refuse_nul(found, "")
    return found


@cache
def _kinds(wanted: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(wanted, include_extras=True)
    return {field.encode_name: _bare(_bare(hints[field.name])) for field in msgspec.structs.fields(wanted)}


def refusal(error: msgspec.ValidationError, wanted: type[msgspec.Struct]) -> Problem | InvalidValue:
    """400 for a wrong shape, InvalidValue (422) for a refused value, both with the path of the field.

    What was sent is not repeated: it may be a secret in the wrong place (S9.12).
    """
    text = str(error)
    at = _PATH.search(text)
    path = at["path"].removeprefix("$").removeprefix(".") if at else ""
    text = _PATH.sub("", text)
    if named := _NAMED.match(text):
        field = f"{path}.{named['name']}" if path else named["name"]
        if named["fault"] == "missing required":
            return malformed(f"{field} is missing.", field)
        return malformed(f"{field} is not a field here.{_near(named['name'], _fields(wanted, path))}", field)
    field = path or "body"
    if text.startswith(_ENUM):
        choices = _choices(wanted, path)
        if not choices:
            return InvalidValue(field, f"{field} is unknown.")
        sent = text.removeprefix(_ENUM).strip(" '")
        return InvalidValue(field, f"{field} must be one of {', '.join(choices)}.{_near(sent, choices)}")
    if _LIMIT.match(text):
        return InvalidValue(field, f"{field}: {_in_words(text)}.")
    return malformed(f"{field}: {text}.", field)


def _in_words(text: str) -> str:
    _expected, _, pattern = text.partition(" matching regex ")
    if not pattern:
        return text.replace("Expected", "expected", 1)
    return _PATTERNS.get(pattern, "is not of the expected form")


def _near(name: str, known: list[str]) -> str:
    """The known name that was meant, whatever its case; of what was sent nothing is repeated."""
    by_lower = {text.lower(): text for text in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def _fields(wanted: type[msgspec.Struct], path: str) -> list[str]:
    at = _type_at(wanted, path)
    if not (isinstance(at, type) and issubclass(at, msgspec.Struct)):
        return []
    return [field.encode_name for field in msgspec.structs.fields(at)]


def _choices(wanted: type[msgspec.Struct], path: str) -> list[str]:
    at = _type_at(wanted, path)
    if get_origin(at) is Literal:
        return [str(choice) for choice in get_args(at)]
    if isinstance(at, type) and issubclass(at, Enum):
        return [str(member.value) for member in at]
    return []


def _type_at(wanted: Any, path: str) -> Any:
    """The type of the field at a path such as `filters[0].actions`, or None."""
    at = wanted
    for step in re.findall(r"[^.\[\]]+|\[[^\]]*\]", path):
        if step.startswith("["):
            at = next(iter(get_args(at)), None)
        elif isinstance(at, type) and issubclass(at, msgspec.Struct):
            names = {field.encode_name: field.name for field in msgspec.structs.fields(at)}
            at = get_type_hints(at, include_extras=True).get(names.get(step, ""))
        else:
            return None
        at = _bare(at)
    return at


def _bare(hint: Any) -> Any:
    """The type without Annotated, None and UNSET."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        rest = [part for part in get_args(hint) if part not in (type(None), msgspec.UnsetType)]
        return _bare(rest[0]) if len(rest) == 1 else hint
    return hint


def _refuse_nul(value: object, path: str) -> None:
    """Postgres keeps no NUL in text, nor in JSON of its own."""
    if isinstance(value, str) and "\0" in value:
        raise InvalidValue(path, f"{path}: must not contain the character U+0000.")
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        for name, sent in names:
            _refuse_nul(getattr(value, name), f"{path}.{sent}" if path else sent)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_nul(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        _check_free(value, path, 1)


def _check_free(value: object, path: str, depth: int) -> None:
    """JSON without a form of its own: no NUL in keys or texts, and no deeper than a webhook's body."""
    if depth > MAX_DEPTH and isinstance(value, dict | list):
        raise InvalidValue(path, f"{path}: is nested more than {MAX_DEPTH} deep.")
    if isinstance(value, dict):
        for name, item in value.items():
            _refuse_nul(name, path)
            _check_free(item, path, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_free(item, path, depth + 1)
    else:
        _refuse_nul(value, path)
