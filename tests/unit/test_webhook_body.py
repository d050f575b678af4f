"""S9.3: what is a body, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import json
from urllib.parse import quote_plus, urlencode

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopilot.domain.webhook.body import MAX_FORM_FIELDS, BadBody, parse_body

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
documents = st.dictionaries(texts, values, max_size=4) | st.lists(values, max_size=4)


@settings(deadline=None)
@given(documents, st.booleans())
def test_every_json_document_comes_back_as_it_was_sent(document: object, ascii_only: bool) -> None:
    raw = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert parse_body(raw, JSON).value == document


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        pytest.param(b"{}", {}, id="an empty object is an object"),
        pytest.param(b" \r\n[1]\t", [1], id="blanks around"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', {"a": 1}, id="a BOM is tolerated"),
        pytest.param(b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}, id="the last of equal keys wins"),
        pytest.param(b'{"m":"a\\u0000b"}', {"m": "a\0b"}, id="WH6 NUL is a character like any other"),
        pytest.param(b'{"m":"\\ud83d\\ude0a"}', {"m": "😊"}, id="a pair of surrogates is a character"),
        pytest.param(b'{"m":"\\\\ud800"}', {"m": "\\ud800"}, id="an escaped backslash is no surrogate"),
        pytest.param(
            b"[9223372036854775808,-9223372036854775809]", [2**63, -(2**63) - 1], id="beyond 64 bit"
        ),
        pytest.param(b"[" + b"7" * 4300 + b"]", [int("7" * 4300)], id="as long as Python converts"),
    ],
)
def test_a_json_body_is_read_exactly(raw: bytes, value: object) -> None:
    assert parse_body(raw, JSON).value == value


@pytest.mark.parametrize("number", ["7" * 4301, "-" + "9" * 20_000, "1e999", "-1.5E+400"])
def test_a_number_python_cannot_hold_keeps_its_digits(number: str) -> None:
    body = parse_body(f'{{"n":{number},"action":"opened"}}'.encode(), JSON)
    assert msgspec.json.encode(body.value).decode() == f'{{"n":{number},"action":"opened"}}'
    assert body.head == {"action": "opened"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"", "is empty", id="nothing"),
        pytest.param(b" \n", "is empty", id="blank"),
        pytest.param(b"\xef\xbb\xbf", "is empty", id="a BOM alone"),
        *(pytest.param(raw, "object or array", id=raw.decode()) for raw in (b"1", b'"x"', b"null", b"true")),
        pytest.param(b'{"a":"\xff"}', "not UTF-8", id="a wrong byte"),
        pytest.param(b'{"a":{"b":"\xed\xa0\x80"}}', "not UTF-8", id="a surrogate as bytes"),
        pytest.param('{"a":1}'.encode("utf-16"), "not UTF-8", id="UTF-16"),
        pytest.param(b'{"a":NaN}', "not JSON", id="NaN"),
        pytest.param(b'{"a":{"b":[-Infinity]}}', "not JSON", id="Infinity"),
        pytest.param(b'{"m":"\\ud800"}', "not JSON", id="WH6 a lone high surrogate"),
        pytest.param(b'{"m":["\\udE0a"]}', "not JSON", id="a lone low surrogate"),
        pytest.param(b'{"m":{"\\uD83D\\uD83D":1}}', "not JSON", id="two high surrogates as a key"),
        pytest.param(b'{"n":1e999,"m":"\\ud800"}', "not JSON", id="a lone surrogate beside a huge number"),
        pytest.param(b'{"a":1', "not JSON", id="cut off"),
        pytest.param(b'{"a":1}}', "not JSON", id="something after"),
        pytest.param(b"{'a':1}", "not JSON", id="single quotes"),
        pytest.param(b'{"a":{"b":"\x01"}}', "not JSON", id="a raw control character"),
        pytest.param(b"[" * 101 + b"]" * 101, "nested more than 100", id="101 deep"),
        pytest.param(b"[" * 99_999 + b"]" * 99_999, "nested more than 100", id="very deep"),
        pytest.param(b'{"a":' * 99_999, "nested more than 100", id="very deep and cut off"),
    ],
)
def test_what_is_not_an_event_body_is_refused_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(BadBody, match=reason) as refusal:
        parse_body(raw, JSON)
    assert (refusal.value.field, refusal.value.code) == ("body", "invalid_body")


def test_a_hundred_levels_are_accepted_whatever_the_strings_hold() -> None:
    assert parse_body(b'{"a":' * 99 + b"[]" + b"}" * 99, JSON).head == {}
    noise = ",".join(json.dumps(text) for text in ("[[[[", "}}", '"[{', "\\", '\\"[', '[\\\\"{') * 30)
    assert parse_body(f"{'[' * 100}{noise}{']' * 100}".encode(), JSON).head == {}
    hidden = '["]",' * 100 + '["[["]' + ', "["]' * 100
    with pytest.raises(BadBody, match="nested more than 100"):
        parse_body(hidden.encode(), JSON)


def test_a_refusal_never_quotes_the_body() -> None:
    """S9.12."""
    for raw in (b'{"hunter2":hunter2}', b'{"hunter2":"\\ud800"}', b'{"hunter2":1e999,"x":"\\ud800"}'):
        with pytest.raises(BadBody) as refusal:
            parse_body(raw, JSON)
        assert "hunter2" not in refusal.value.message


@pytest.mark.parametrize("content_type", [FORM, f"{FORM}; charset=UTF-8", FORM.upper()])
def test_a_form_with_a_payload_is_its_json(content_type: str) -> None:
    """WH5: GitHub's default content type."""
    raw = b"payload=" + quote_plus('{"action":"opened","title":"a & b + caf\u00e9"}').encode()
    assert parse_body(raw, content_type).value == {"action": "opened", "title": "a & b + café"}


def test_a_plain_form_is_an_object_of_strings() -> None:
    body = parse_body(
        urlencode([("a", "1"), ("b", "x"), ("b", "y"), ("c", ""), ("d", "\0é")]).encode() + b"\n", FORM
    )
    assert body.value == {"a": "1", "b": ["x", "y"], "c": "", "d": "\0é"}


def test_a_form_with_several_payloads_is_a_plain_form() -> None:
    assert parse_body(b"payload=1&payload=%7B%7D", FORM).value == {"payload": ["1", "{}"]}


def test_json_sent_under_a_forms_content_type_is_json() -> None:
    assert parse_body(b' {"a":"x&y=z"}', FORM).value == {"a": "x&y=z"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"payload=", "not JSON", id="no payload"),
        pytest.param(b"payload=hello", f"not JSON .*content type is {FORM}", id="a payload that is no JSON"),
        pytest.param(b"payload=1", "object or array", id="a scalar payload"),
        pytest.param(b"payload=%7B%22a%22%3A%22%5Cud800%22%7D", "not JSON", id="a lone surrogate"),
        pytest.param(b"a=%ff", "not UTF-8", id="an escaped wrong byte"),
        pytest.param(b"a=\xff", "not UTF-8", id="a wrong byte"),
        pytest.param(b"&&", "is empty", id="no field"),
        pytest.param(
            b"&".join([b"a=1"] * (MAX_FORM_FIELDS + 1)), "more than 1000 fields", id="too many fields"
        ),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(BadBody, match=reason):
        parse_body(raw, FORM)


def test_multipart_is_refused_by_name() -> None:
    with pytest.raises(BadBody, match="multipart/form-data is not supported"):
        parse_body(b'{"a":1}', "multipart/form-data; boundary=x")


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/vnd.x+json", "\udcff"])
def test_any_other_content_type_is_read_as_json(content_type: str | None) -> None:
    assert parse_body(b'{"a":1}', content_type).value == {"a": 1}
    with pytest.raises(BadBody) as refusal:
        parse_body(b"hello", content_type)
    refusal.value.message.encode()


def test_the_head_holds_what_names_and_filters_an_event() -> None:
    raw = b"""{"event":"e","type":1,"action":true,"state":null,"conclusion":"ok","status":["x"],
               "eventPayload":{"action":"a\\u0062","x":{"action":"no"}},"other":"z"}"""
    assert parse_body(raw, JSON).head == {"event": "e", "conclusion": "ok", "eventPayload": {"action": "ab"}}
    assert parse_body(b'{"eventPayload":"text","action":1,"\\u0061ction":"last"}', JSON).head == {
        "eventPayload": None,
        "action": "last",
    }
    assert parse_body(b'[{"action":"x"}]', JSON).head == {}


def strictly(raw: bytes) -> bool:
    """The standard library's verdict on an object or array, where it is as strict as S9.3."""

    def refuse(_: str) -> None:
        raise ValueError

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        repr(items).encode()
        json.dumps(items, ensure_ascii=False).encode()
        return dict(items)

    try:
        value = json.loads(raw.decode(), parse_constant=refuse, object_pairs_hook=pairs)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return isinstance(value, (dict, list))


SEED = b'{"a":[1,-2.5e3,true,null,{"b":"\\n\\u00e9\\ud83d\\ude00"}],"s":"\\u0000 \xc3\xa9\\\\","x":{"":0}}'
edits = st.lists(
    st.tuples(
        st.integers(0, len(SEED) - 1), st.sampled_from(b'{}[]",:\\/u0d9-+.eEtN \n\x00\xff'), st.integers(0, 2)
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(edits)
@example([(0, 32, 0)])
def test_skipping_over_values_is_as_strict_as_decoding_them(changes: list[tuple[int, int, int]]) -> None:
    raw = bytearray(SEED)
    for place, byte, width in changes:
        raw[place : place + width] = bytes([byte])
    try:
        parse_body(bytes(raw), JSON)
        accepted = True
    except BadBody:
        accepted = False
    assert accepted == strictly(bytes(raw))
