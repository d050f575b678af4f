"""The body of a webhook, read strictly and exactly (S9.3)."""

from __future__ import annotations

import json
import math
import re
from array import array
from itertools import accumulate
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from autopilot.domain.errors import InvalidValue

MAX_DEPTH: Final = 100
MAX_FORM_FIELDS: Final = 1_000

_OBJECTS: Final = frozenset({"event", "eventPayload", "object_attributes"})
_MAX_HEAD_DIGITS: Final = 15
_MAX_INT_DIGITS: Final = 4_300  # beyond it Python refuses to convert between text and int
_LARGE_BYTES: Final = 32 * 1024
_MANY_ESCAPES: Final = 2_000
_PEELS: Final = 16
_BOM: Final = b"\xef\xbb\xbf"
_FORM: Final = "application/x-www-form-urlencoded"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ESCAPED: Final = re.compile(rb'\\[\\"]')
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # read as signed bytes: one in, one out


class BadBody(InvalidValue):
    """The request cannot be read as an event: 400 with the reason, which never quotes the body."""

    def __init__(self, message: str, *, field: str = "body") -> None:
        super().__init__(field, message, code="invalid_body")


class _Top(Struct):
    """The few fields that name, filter and identify an event; the rest is checked and skipped."""

    event: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET
    action: Raw | UnsetType = UNSET
    state: Raw | UnsetType = UNSET
    conclusion: Raw | UnsetType = UNSET
    status: Raw | UnsetType = UNSET
    subtype: Raw | UnsetType = UNSET
    command: Raw | UnsetType = UNSET
    build_status: Raw | UnsetType = UNSET
    event_type: Raw | UnsetType = UNSET
    event_id: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    challenge: Raw | UnsetType = UNSET
    webhookTimestamp: Raw | UnsetType = UNSET  # noqa: N815 - the names on the wire
    eventPayload: Raw | UnsetType = UNSET  # noqa: N815
    object_attributes: Raw | UnsetType = UNSET


_object = msgspec.json.Decoder(_Top)
_array = msgspec.json.Decoder(list[Raw])
_string = msgspec.json.Decoder(str)
_any = msgspec.json.Decoder()


class ParsedBody(Struct, frozen=True, kw_only=True):
    """A body proven readable.

    `head` is as much of the value as naming, filtering and the table of providers look at: of the fields of `_Top`
    the strings, a whole number in `webhookTimestamp`, and the same of an `event`, `eventPayload` or
    `object_attributes` that is an object; an `eventPayload` of any other kind is None. Empty for an array. Reading
    it costs a fraction of decoding `value`.
    """

    json_text: bytes
    head: dict[str, object]

    @property
    def value(self) -> object:
        """The whole value, decoded anew by each access. A number that Python cannot hold is a `msgspec.Raw`."""
        return _decode(self.json_text)


def parse_body(raw: bytes, content_type: str | None) -> ParsedBody:
    """Prove that `raw` is an event body, or raise BadBody. The same bytes always give the same value.

    A form that holds JSON all the same (what `curl -d '{…}'` sends) is taken as the JSON it is.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type.startswith("multipart/"):
        raise BadBody(f"content type {_shown(media_type)} is not supported: send JSON or a form")
    text = raw.removeprefix(_BOM)
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise BadBody("the body is not UTF-8") from error
    if not decoded or decoded.isspace():
        raise BadBody("the body is empty")
    if media_type == _FORM and decoded.lstrip()[0] not in "{[":
        text = _form_as_json(decoded.rstrip("\r\n"))
    try:
        return ParsedBody(json_text=text, head=_check(text))
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise BadBody(f"the body is not JSON ({reason}){_read_as(media_type)}") from error


def _check(text: bytes) -> dict[str, object]:
    """The head of JSON text in UTF-8; raises BadBody or msgspec.DecodeError.

    Values that are skipped are checked as strictly as those that are decoded, the pairing of escaped surrogates
    included; only the encoding is not, which is why `text` must be known to be UTF-8.
    """
    first = text.lstrip(b" \t\r\n")[:1]
    try:
        if first == b"{":
            head = _head(text)
        elif first == b"[":
            _array.decode(text)
            head = {}
        else:
            _any.decode(text)
            raise BadBody("the body must be a JSON object or array")
    except RecursionError as error:
        raise BadBody(f"the body is nested more than {MAX_DEPTH} deep") from error
    if _depth_over(text, MAX_DEPTH):
        raise BadBody(f"the body is nested more than {MAX_DEPTH} deep")
    return head


def _head(text: bytes | Raw, *, nested: bool = False) -> dict[str, object]:
    """One level of fields, and below it one more of those that are objects: no body makes it read on and on."""
    head: dict[str, object] = {}
    for name, field in zip(_Top.__struct_fields__, astuple(_object.decode(text)), strict=True):
        if field is UNSET:
            continue
        value = bytes(field)
        if value[:1] == b'"' and name != "eventPayload":
            head[name] = _string.decode(value)
        elif value[:1] == b"{" and name in _OBJECTS and not nested:
            head[name] = _head(value, nested=True)
        elif name == "eventPayload":
            head[name] = None
        elif name == "webhookTimestamp" and value.isdigit() and len(value) <= _MAX_HEAD_DIGITS:
            head[name] = int(value)
    return head


def _depth_over(text: bytes, limit: int) -> bool:
    """Whether valid JSON nests deeper than `limit`; exact, in a few passes of the bytes of which none is Python's."""
    if len(text) < _LARGE_BYTES and _few(text, b"[", limit) + _few(text, b"{", limit) <= limit:
        return False
    # Two quotes with nothing between them may go: what is left stays inside or outside of a string as it was.
    structure = _without_escapes(text).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = left = b"".join(structure.split(b'"')[::2])
    for peeled in range(0, _PEELS, 2):  # a round takes away two levels at most
        if peeled + len(left) // 2 <= limit:
            return False
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return max(accumulate(array("b", brackets.translate(_STEPS, _NOT_BRACKETS)))) > limit


def _without_escapes(text: bytes) -> bytes:
    """The text without what a backslash keeps from being a quote."""
    escapes = _few(text, b"\\", _MANY_ESCAPES)
    if not escapes:
        return text
    if escapes > _MANY_ESCAPES:
        return text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _ESCAPED.sub(b"", text)


def _few(text: bytes, byte: bytes, limit: int) -> int:
    """How often a byte occurs, or limit + 1: by removing it, which goes from one to the next, while `count` looks at each byte."""
    return len(text) - len(text.replace(byte, b"", limit + 1))


def _decode(text: bytes) -> object:
    """Decode valid JSON text; numbers too long for msgspec take the slower way round."""
    try:
        return _any.decode(text)
    except msgspec.ValidationError:
        return json.loads(text, parse_int=_exact_int, parse_float=_exact_float)


def _exact_int(literal: str) -> int | Raw:
    return int(literal) if len(literal) <= _MAX_INT_DIGITS else Raw(literal)


def _exact_float(literal: str) -> float | Raw:
    value = float(literal)
    return value if math.isfinite(value) else Raw(literal)


def _form_as_json(form: str) -> bytes:
    """The JSON of a form: its one `payload` field, else its fields with repeated ones as arrays."""
    try:
        pairs = parse_qsl(form, keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
    except UnicodeDecodeError as error:
        raise BadBody("the form is not UTF-8") from error
    except ValueError as error:
        raise BadBody(f"the form has more than {MAX_FORM_FIELDS} fields") from error
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    if not fields:
        raise BadBody("the form is empty")
    payload = fields.get("payload", [])
    if len(payload) == 1:
        return payload[0].encode()
    return msgspec.json.encode(
        {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
    )


def _read_as(media_type: str) -> str:
    if not media_type or media_type == "application/json":
        return ""
    return f"; its content type is {_shown(media_type)}"


def _shown(media_type: str) -> str:
    return media_type.encode("ascii", "backslashreplace").decode()[:100]
