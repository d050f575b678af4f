"""S9.4 to S9.6: every row of the table of providers against requests that others signed; each vector names its source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from multidict import CIMultiDict
from tests.support.provider_vectors import KEY, PUBLISHED, STANDARD_SECRET, VECTORS, Vector
from tests.support.senders import LIBRARIES, NO_LIBRARY

from autopilot.domain.webhook import envelope, providers, tokens
from autopilot.domain.webhook.signature import Proof, SignatureStatus, Signed, verify

DOCS = Path(__file__).parents[2] / "docs" / "webhooks.md"
vectors = pytest.mark.parametrize(
    "vector", [pytest.param(vector, id=f"{vector.provider} {vector.source}") for vector in VECTORS]
)
timed = pytest.mark.parametrize(
    "vector",
    [
        pytest.param(vector, id=f"{vector.provider} {next(iter(vector.signature))}")
        for vector in VECTORS
        if vector.timed
    ],
)


def judged(
    vector: Vector,
    *,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    secrets: tuple[str, ...] | None = None,
    late_s: int = 0,
) -> Proof:
    raw = vector.body if body is None else body
    try:
        head = envelope.parse_body(raw, vector.content_type).head
    except envelope.BadBody:
        head = {}
    sent = {**vector.headers, **vector.signature} if headers is None else headers
    given = (vector.secret,) if secrets is None else secrets
    now = datetime.fromtimestamp(vector.signed_at + late_s, UTC)
    request = Signed(headers=CIMultiDict(sent), raw=raw, head=head)
    return verify(providers.get(vector.provider), [secret.encode() for secret in given], request, now)


@vectors
def test_what_the_provider_signed_is_valid(vector: Vector) -> None:
    assert judged(vector) == Proof(SignatureStatus.VALID)
    other = "whsec_" + "A" * 32
    assert judged(vector, secrets=(other, vector.secret)).status is SignatureStatus.VALID, "S9.13"
    assert judged(vector, secrets=(other,)).status is SignatureStatus.INVALID


@vectors
def test_whatever_was_changed_is_invalid(vector: Vector) -> None:
    """S9.6: the raw bytes count; the token of GitLab covers none, as its documentation warns."""
    if "X-Gitlab-Token" not in vector.signature:
        assert judged(vector, body=vector.body + b" ").status is SignatureStatus.INVALID
    for name, value in vector.signature.items():
        for other in (
            "",
            value[:-1],
            value + "0",
            value[::-1],
            value.replace("=", ":"),
            "é\udcff",
            "v1,",
        ):
            if other != value:
                proof = judged(vector, headers={**vector.headers, **vector.signature, name: other})
                assert proof.status is SignatureStatus.INVALID, other
                assert proof.flaw


@vectors
def test_a_request_without_its_signature_says_which_header_is_missing(vector: Vector) -> None:
    proof = judged(vector, headers=dict(vector.headers))
    assert proof.status is SignatureStatus.MISSING
    assert all(name in proof.flaw for name in vector.signature)
    assert judged(vector, secrets=()).status is SignatureStatus.NOT_REQUIRED


@timed
@pytest.mark.parametrize(
    ("late_s", "status"),
    [
        (300, SignatureStatus.VALID),
        (-300, SignatureStatus.VALID),
        (301, SignatureStatus.INVALID),
        (-301, SignatureStatus.INVALID),
    ],
)
def test_more_than_five_minutes_either_way_are_refused(
    vector: Vector, late_s: int, status: SignatureStatus
) -> None:
    """WH8, S9.5."""
    proof = judged(vector, late_s=late_s)
    assert proof.status is status
    if status is SignatureStatus.INVALID:
        assert f"301 s {'before' if late_s > 0 else 'after'} it arrived" in proof.flaw
        forged = judged(vector, body=vector.body + b" ", late_s=late_s)
        assert "it arrived" not in forged.flaw, "only one who could sign is told about clocks"


@timed
@pytest.mark.parametrize(
    "given", ["", "1614265330.0", "-1614265330", "١٦١٤٢٦٥٣٣٠", " 1614265330", "9" * 400, None]
)
def test_a_timestamp_that_is_none_is_invalid(vector: Vector, given: str | None) -> None:
    headers = {**vector.headers, **vector.signature}
    body = vector.body
    for scheme in providers.get(vector.provider).schemes:
        if scheme.header not in headers:
            continue
        if scheme.timestamp_header:
            headers.pop(scheme.timestamp_header)
            headers |= {scheme.timestamp_header: given} if given is not None else {}
        elif scheme.timestamp_prefix:
            signature = headers[scheme.header].partition(",")[2]
            headers[scheme.header] = f"t={given},{signature}" if given is not None else signature
        else:
            body = body.replace(b":1614265330000", f':"{given}"'.encode())
    proof = judged(vector, body=body, headers=headers)
    assert proof.status is SignatureStatus.INVALID
    assert given == " 1614265330" or "timestamp" in proof.flaw


@vectors
def test_event_and_delivery_id_are_read_of_it(vector: Vector) -> None:
    if vector.event is None:
        return
    provider, headers = providers.get(vector.provider), CIMultiDict({**vector.headers, **vector.signature})
    body = envelope.parse_body(vector.body, vector.content_type)
    for value in (body.head, body.value):
        assert envelope.read_event(provider, headers, value) == vector.event
        found = providers.dedupe_key(provider, headers, value)
        assert (found and found[0]) == vector.key
    stored = tokens.stored_headers(headers)
    assert all(stored[name] == "present" for name in vector.signature), "S9.12"


def test_the_schemes_with_a_time_are_known_by_name() -> None:
    timed = {vector.provider for vector in VECTORS if vector.timed}
    assert timed == {"gitlab", "stripe", "slack", "linear", "standard-webhooks"}


@pytest.mark.parametrize("name", providers.PROVIDERS)
def test_every_row_comes_with_vectors_docs_and_a_sender(name: str) -> None:
    """S9.5: adding a provider is adding a row, its vectors, what to paste where, and the library that signs, if any."""
    own = [vector for vector in VECTORS if vector.provider == name]
    seen = {header for vector in own for header in vector.signature}
    row = providers.PROVIDERS[name]
    known = {scheme.header for scheme in row.schemes}
    assert seen == known, "every scheme has a vector"
    assert any(vector.event for vector in own)
    assert any(vector.published for vector in own) == (name in PUBLISHED)
    assert f"### `{name}`" in DOCS.read_text()
    assert all(f"`{alias}`" in DOCS.read_text() for alias in row.aliases)
    assert (name in LIBRARIES) != (name in NO_LIBRARY)


def test_one_of_several_signatures_that_fits_is_enough() -> None:
    """A provider that changes its key signs with both for a while."""
    for vector in VECTORS:
        scheme = next(row for row in providers.get(vector.provider).schemes if row.header in vector.signature)
        if not scheme.separator:
            continue
        value = vector.signature[scheme.header]
        many = scheme.separator.join(
            ["v9,x", f"{scheme.prefix}AAAA", "", value, f"{scheme.prefix}{'0' * 64}"]
        )
        assert judged(vector, headers={**vector.headers, scheme.header: many}).status is SignatureStatus.VALID
        none = scheme.separator.join([f"{scheme.prefix}AAAA"] * 5000)
        assert (
            judged(vector, headers={**vector.headers, scheme.header: none}).status is SignatureStatus.INVALID
        )


def test_the_key_of_a_standard_webhook_may_be_written_in_three_ways() -> None:
    """With its prefix, without (as the reference libraries read it, padding or none), or as plain text."""
    vector = next(vector for vector in VECTORS if vector.secret == STANDARD_SECRET and vector.published)
    assert judged(vector, secrets=(STANDARD_SECRET.removeprefix("whsec_"),)).status is SignatureStatus.VALID
    plain = next(vector for vector in VECTORS if vector.provider == "standard-webhooks")
    signature = "v1,r94XOxQw8v+vLaVrXIUkFWnEmqNekP5mdIZf2e/Me5o="
    sent = {**plain.headers, "webhook-signature": signature}
    assert judged(plain, headers=sent, secrets=(KEY,)).status is SignatureStatus.VALID
    assert judged(plain, headers=sent, secrets=(f"whsec_{KEY}",)).status is SignatureStatus.INVALID


def test_a_secret_that_is_no_base64_is_taken_as_it_is() -> None:
    vector = next(vector for vector in VECTORS if vector.secret == STANDARD_SECRET)
    assert judged(vector, secrets=("whsec_not base64 at all",)).status is SignatureStatus.INVALID


@pytest.mark.parametrize(
    ("provider", "event"),
    [
        ("github", "github.ping"),
        ("bitbucket", "bitbucket.diagnostics:ping"),
        ("stripe", "stripe.v2.core.event_destination.ping"),
        ("pagerduty", "pagerduty.pagey.ping"),
        ("slack", "slack.url_verification"),
        ("generic", "github.ping"),
    ],
)
def test_a_provider_that_only_asks_is_known(provider: str, event: str) -> None:
    """S9.8 `provider_ping`."""
    assert envelope.is_ping(providers.get(provider), event)
    assert not envelope.is_ping(providers.get(provider), event + "ed")
    assert not envelope.is_ping(providers.get("linear"), event)


@pytest.mark.parametrize(
    ("challenge", "answer"),
    [
        ("3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P", True),
        ("c" * 1001, False),
        ("", False),
        (1, False),
        ({"a": 1}, False),
    ],
)
def test_a_handshake_is_answered_with_its_challenge(challenge: object, answer: bool) -> None:
    """S9.8; https://docs.slack.dev/reference/events/url_verification"""
    slack = providers.get("slack")
    body = {"token": "t", "challenge": challenge, "type": "url_verification"}
    event = envelope.read_event(slack, CIMultiDict(), body)
    assert envelope.handshake_answer(slack, event, body) == ({"challenge": challenge} if answer else None)
    assert envelope.handshake_answer(slack, "slack.app_mention", body) is None
    assert envelope.handshake_answer(providers.get("github"), "url_verification", body) is None
