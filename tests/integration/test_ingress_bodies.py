"""S9.3 over real sockets: no body and no framing makes ingress fail or hang, and what it takes reaches the agent unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.dispatching import assert_coherent, drain, worker
from tests.support.wire import Reply, Wire, wired

from autopilot.domain.webhook.body import BadBody, parse_body
from autopilot.ingress import receive
from autopilot.storage.bodies import body_of

pytestmark = pytest.mark.timeout(180)

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def wire(postgres_admin_url: str, postgres_template: str) -> Iterator[Wire]:
    # Who waits for more of a body is answered in the end: much later than these tests wait for an answer.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive, "ANSWER_WITHIN_S", 90.0)
        with wired(postgres_admin_url, postgres_template) as wire:
            yield wire


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
named = st.dictionaries(
    st.sampled_from(["action", "event", "eventPayload", "type", "id", "object_attributes", "payload"])
    | texts,
    values,
    max_size=5,
)
documents = st.builds(
    lambda value, ascii_only, blanks: json.dumps(value, ensure_ascii=ascii_only, indent=blanks).encode(),
    named | st.lists(values, max_size=4),
    st.booleans(),
    st.none() | st.integers(0, 3),
)
tokens = st.sampled_from(
    [
        *(b"NaN", b"-Infinity", b"1e999", b"-0", b"01", b"+1", b"9" * 5000, b"12345678901234567890123"),
        *(
            b'"\\ud800"',
            b'"\\udc00\\ud800"',
            b'"\\u0000"',
            b'"\\ud83d\\ude0a"',
            b'"\\x"',
            b'"\x01"',
            b'"\xff"',
        ),
        *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe{\0}\0", b"\0", b"//", b"'", b",", b"}", b'"', b"\\"),
        *(
            b'"a":1,"a":2',
            b"[" * 101 + b"]" * 101,
            b"[" * 100,
            b'{"a":' * 3000,
            b"[]" * 99,
            b"```",
            b"\xe2\x80\xae",
        ),
    ]
)
forms = st.builds(
    lambda pairs: urlencode(pairs).encode(),
    st.lists(st.tuples(st.sampled_from(["payload", "a", "b"]), texts), max_size=5),
) | documents.map(lambda document: b"payload=" + quote_plus(document).encode())


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A document or form into which tokens were put where they do not belong."""
    raw = draw(documents | forms | st.binary(max_size=60) | tokens)
    for token in draw(st.lists(tokens, max_size=3)):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + token + raw[at + draw(st.integers(0, 3)) :]
    return raw


content_types: st.SearchStrategy[str | bytes | None] = st.sampled_from(
    [
        *(
            None,
            JSON,
            JSON,
            f"{JSON}; charset=utf-8",
            f"{JSON}; charset=utf-16",
            "text/plain",
            FORM,
            FORM.upper(),
        ),
        *(
            "multipart/form-data; boundary=x",
            "multipart/",
            "",
            ";;;",
            "application/\u00ff",
            b"\xff\xfe",
            "a" * 2000,
        ),
    ]
)


@st.composite
def framed(draw: st.DrawFn, raw: bytes) -> tuple[list[str], list[bytes]]:
    """The same body whole, in pieces or in chunks."""
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    if draw(st.booleans()):
        return [f"Content-Length: {len(raw)}"], pieces
    ending = draw(st.sampled_from([b"0\r\n\r\n", b"000;x=y\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n"]))
    chunks = [b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]
    return ["Transfer-Encoding: chunked"], [*chunks, ending]


requests = hostile().flatmap(lambda raw: st.tuples(st.just(raw), content_types, framed(raw)))


def as_text(content_type: str | bytes | None) -> str | None:
    """A header as ingress sees it."""
    if content_type is None:
        return None
    raw = content_type if isinstance(content_type, bytes) else content_type.encode()
    return raw.decode("utf-8", "surrogateescape").strip()


def readable(raw: bytes, content_type: str | None) -> bool:
    try:
        parse_body(raw, content_type)
    except BadBody:
        return False
    return True


async def stored(wire: Wire, delivery_id: str) -> bytes:
    async with wire.database.connection() as conn:
        row = await conn.fetchrow(
            "SELECT body, raw_size FROM webhook_body WHERE delivery_id = $1", delivery_id
        )
    assert row is not None
    return body_of(row) or b""


def assert_explained(reply: Reply) -> None:
    assert reply.status is not None
    assert 400 <= reply.status < 500
    assert reply.body["code"]
    assert len(reply.body["detail"]) > 10


@settings(
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(requests)
def test_any_body_is_taken_as_it_is_or_refused_with_a_reason(
    wire: Wire, request: tuple[bytes, str | bytes | None, tuple[list[str], list[bytes]]]
) -> None:
    raw, content_type, (framing, pieces) = request
    if content_type is not None:
        given_type = content_type if isinstance(content_type, bytes) else content_type.encode()
        reply = wire.post([*framing, b"Content-Type: " + given_type], *pieces)
    else:
        reply = wire.post(framing, *pieces)
    assert reply.status in (200, 400), reply
    assert (reply.status == 200) == readable(raw, as_text(content_type))
    if reply.status == 200:
        assert wire.ask(stored(wire, reply.body["delivery_id"])) == raw
    else:
        assert_explained(reply)
        assert reply.body["field"]


CUT = "cut short"
FRAMINGS = [
    pytest.param(["Transfer-Encoding: chunked"], [b"zz\r\n{}\r\n0\r\n\r\n"], id="a size that is none"),
    pytest.param(["Transfer-Encoding: chunked"], [b"-2\r\n{}\r\n0\r\n\r\n"], id="a size below zero"),
    pytest.param(["Transfer-Encoding: chunked"], [b"f" * 40 + b"\r\n{}"], id="a size beyond all bounds"),
    pytest.param(["Transfer-Encoding: chunked"], [b"2\r\n{}0\r\n\r\n"], id="a chunk without its end"),
    pytest.param(["Transfer-Encoding: chunked"], [b"1" + b" " * 20_000 + b"\r\n"], id="an endless size line"),
    pytest.param(["Transfer-Encoding: chunked"], [b"5\r\n{}", CUT], id="cut off within a chunk"),
    pytest.param(["Transfer-Encoding: chunked"], [b"2\r\n{}\r\n", CUT], id="cut off between chunks"),
    pytest.param(
        ["Transfer-Encoding: chunked"], [b"10000\r\n" + b" " * 65536 + b"\r\n"] * 5, id="too many chunks"
    ),
    pytest.param(["Transfer-Encoding: xchunked"], [b"2\r\n{}\r\n0\r\n\r\n"], id="an encoding nobody knows"),
    pytest.param(
        ["Transfer-Encoding: gzip, chunked"], [b"2\r\n\x1f\x8b\r\n0\r\n\r\n"], id="compressed on the way"
    ),
    pytest.param(
        ["Transfer-Encoding: chunked", "Content-Length: 2"], [b"2\r\n{}\r\n0\r\n\r\n"], id="two framings"
    ),
    pytest.param(["Content-Length: 2", "Content-Length: 3"], [b"{}"], id="two lengths"),
    pytest.param(["Content-Length: -1"], [b"{}"], id="a length below zero"),
    pytest.param(["Content-Length: +2"], [b"{}"], id="a length with a sign"),
    pytest.param(["Content-Length: 0x2"], [b"{}"], id="a length in hexadecimal"),
    pytest.param(["Content-Length: 9" + "9" * 30], [b"{}"], id="a length beyond all bounds"),
    pytest.param(["Content-Length: 300000"], [b"{}"], id="an honest length that is too large"),
    pytest.param(["Content-Length: 9"], [b"{}", CUT], id="cut off"),
    pytest.param(["Content-Length: 0"], [], id="nothing"),
    pytest.param([], [], id="no length at all"),
    pytest.param(["Content-Length: 2", "Content-Encoding: gzip"], [b"{}"], id="compressed"),
    pytest.param(["Content-Length: 2", "Content-Encoding: br, identity"], [b"{}"], id="compressed twice"),
    pytest.param(["Content-Length: 2", b"X-GitHub-Event: \x00push"], [b"{}"], id="NUL in a header"),
    pytest.param(
        ["Content-Length: 2", b"X-GitHub-Event: pu\xffsh"], [b"{}"], id="a header that is not UTF-8"
    ),
    pytest.param(
        ["Content-Length: 2", b"X-GitHub-Delivery: " + b"d" * 256], [b"{}"], id="an id that is too long"
    ),
    pytest.param(
        ["Content-Length: 2", "X-GitHub-Event: " + "e" * 256], [b"{}"], id="a name that is too long"
    ),
    pytest.param(["Content-Length: 2", "Bad Header: x"], [b"{}"], id="a blank in a header's name"),
    pytest.param(["Content-Length: 2", "NoColon"], [b"{}"], id="a header without a colon"),
]


@pytest.mark.parametrize(("framing", "pieces"), FRAMINGS)
def test_any_framing_is_refused_at_once(
    wire: Wire, framing: list[str | bytes], pieces: list[bytes | str]
) -> None:
    """S9.3: a 4xx, or a closed connection where the sender has hung up; the next request is served."""
    sent = [piece for piece in pieces if isinstance(piece, bytes)]
    hang_up = CUT in pieces
    reply = wire.post(framing, *sent, hang_up=hang_up)
    if reply.status is None:
        assert hang_up
    else:
        assert 400 <= reply.status < 500, reply
        assert reply.body
    assert wire.post(["Content-Length: 2"], b"{}").status == 200


def test_a_sender_that_waits_to_be_asked_is_asked(wire: Wire) -> None:
    """`Expect: 100-continue`, as curl sends it before a large body; http.client skips the 100."""
    assert wire.post(["Content-Length: 2", "Expect: 100-continue"], b"{}").status == 200


EXACT = (
    (
        b'{"z":1,"a":{"y":12345678901234567890123,"b":-9223372036854775809},"nul":"a\\u0000b","emoji":"\xf0\x9f\x98\x8a",'
        b'"pair":"\\ud83d\\ude0a","fence":"```\\n~~~","rtl":"\\u202e","big":1e999,"f":0.1,"\\u0000":[],"":null}'
    ),
    b"[" + b"7" * 6000 + b"]",
    b'\xef\xbb\xbf{"n":-0,"e":1E5,"dup":1,"x":2,"dup":3}',
    b'payload={"z":1,"a":"b c"}',
)


def exact(text: str | bytes) -> Any:
    """JSON with its keys in their order, the last of equal ones, and integers by their digits."""
    return json.loads(
        text,
        parse_int=lambda digits: "0" if digits == "-0" else digits,
        object_pairs_hook=lambda pairs: list(dict(pairs).items()),
    )


async def told(wire: Wire) -> list[tuple[bytes, str | None, str]]:
    """Body, content type and prompt of everything accepted, once the dispatcher has made tasks of it."""
    await drain(worker(wire.database))
    async with wire.database.connection() as conn:
        rows = await conn.fetch(
            """SELECT b.body, b.raw_size, d.content_type, t.prompt
                 FROM webhook_delivery d
                 JOIN webhook_body b ON b.delivery_id = d.id
                 JOIN autopilot_run r ON r.webhook_delivery_id = d.id
                 JOIN agent_task t ON t.issue_id = r.issue_id"""
        )
    return [(body_of(row) or b"", row["content_type"], row["prompt"]) for row in rows]


def test_what_was_taken_reaches_the_agent_unchanged(wire: Wire) -> None:
    """S9.3, S3.4: integers, NUL, emoji and the order of keys, of these bodies and of all that were accepted before."""
    for raw in EXACT:
        media_type = FORM if raw.startswith(b"payload") else JSON
        framing = [f"Content-Length: {len(raw)}", f"Content-Type: {media_type}"]
        assert wire.post(framing, raw).status == 200
    prompts = wire.ask(told(wire))
    assert {raw for raw, _, _ in prompts} >= set(EXACT)
    for raw, content_type, prompt in prompts:
        fence = max((line for line in prompt.splitlines() if line.endswith("json")), key=len)
        shown = prompt.partition(fence)[2].partition("\n" + fence.removesuffix("json"))[0]
        body = parse_body(raw, content_type)
        assert exact(shown) == exact(body.json_text)
        assert "\0" not in prompt
    wire.ask(assert_coherent(wire.database))
