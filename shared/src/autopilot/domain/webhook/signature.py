"""Whether a webhook was signed with one of the trigger's secrets, and lately (S9.5, S9.6)."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from autopilot.domain.webhook.providers import Provider, Scheme

TOLERANCE_S: Final = 300
_MAX_TIMESTAMP_DIGITS: Final = 15
_KEY_PREFIX: Final = b"whsec_"


class SignatureStatus(StrEnum):
    """What the signature of a delivery proved."""

    NOT_REQUIRED = "not_required"
    VALID = "valid"
    INVALID = "invalid"
    MISSING = "missing"


class Proof(Struct, frozen=True):
    """What a signature proved; `flaw` tells the sender what is wrong with one that proved nothing."""

    status: SignatureStatus
    flaw: str = ""


class Signed(Struct, frozen=True, kw_only=True):
    """What there is to judge of a request: its headers, whose names know no case, its raw body, and the body's head."""

    headers: Mapping[str, str]
    raw: bytes
    head: Mapping[str, object]


_NOT_REQUIRED: Final = Proof(SignatureStatus.NOT_REQUIRED)
_VALID: Final = Proof(SignatureStatus.VALID)


def verify(provider: Provider, secrets: Sequence[bytes], request: Signed, now: datetime) -> Proof:
    """Judge a request by each of the provider's schemes that it uses; one that fits is enough.

    During a rotation `secrets` holds the new and the previous one. `now` is the database's clock. Whatever is
    malformed is invalid; every secret is tried in constant time, so the answer's delay says nothing about which one
    fitted.
    """
    if not secrets:
        return _NOT_REQUIRED
    flaw = ""
    for scheme in provider.schemes:
        given = request.headers.get(scheme.header)
        if given is not None:
            flaw = _flaw(scheme, given, secrets, request, now)
            if not flaw:
                return _VALID
    if flaw:
        return Proof(SignatureStatus.INVALID, flaw)
    wanted = " or ".join(scheme.header for scheme in provider.schemes)
    return Proof(SignatureStatus.MISSING, f"the signature is missing: there is no header {wanted}")


def _flaw(scheme: Scheme, given: str, secrets: Sequence[bytes], request: Signed, now: datetime) -> str:
    """What is wrong with a signature, empty when nothing is. That it is old is said only of one that fits."""
    values = [value.strip() for value in given.split(scheme.separator)] if scheme.separator else [given]
    timestamp = _timestamp(scheme, values, request)
    if timestamp == "":
        return "the signature's timestamp is missing or not a number"
    message = request.raw
    if scheme.before_body:
        sent_id = request.headers.get(scheme.id_header, "") if scheme.id_header else ""
        before = scheme.before_body.format(id=sent_id, timestamp=timestamp)
        message = before.encode("utf-8", "surrogateescape") + message
    prefix = scheme.prefix
    candidates = [_as_bytes(scheme, value[len(prefix) :]) for value in values if value.startswith(prefix)]
    fits = False
    for secret in secrets:
        for expected in _expected(scheme, secret, message):
            for candidate in candidates:  # every pair is compared, whichever fits first
                fits |= hmac.compare_digest(expected, candidate)
    if not fits:
        return f"the signature in {scheme.header} does not fit the body"
    return _staleness(scheme, timestamp, now) if timestamp is not None else ""


def _as_bytes(scheme: Scheme, value: str) -> bytes:
    return (value.lower() if scheme.encoding == "hex" else value).encode("utf-8", "surrogateescape")


def _expected(scheme: Scheme, secret: bytes, message: bytes) -> tuple[bytes, ...]:
    if scheme.encoding == "secret":
        return (secret,)
    digests = [hmac.digest(key, message, "sha256") for key in _keys(scheme, secret)]
    return tuple(
        digest.hex().encode() if scheme.encoding == "hex" else b64encode(digest) for digest in digests
    )


def _keys(scheme: Scheme, secret: bytes) -> tuple[bytes, ...]:
    """The key that a secret stands for. One without `whsec_` may be base64, as the libraries read it, or plain text."""
    if scheme.key == "text":
        return (secret,)
    try:
        encoded = secret.removeprefix(_KEY_PREFIX)
        decoded = b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return (secret,)
    return (decoded,) if secret.startswith(_KEY_PREFIX) else (decoded, secret)


def _timestamp(scheme: Scheme, values: Sequence[str], request: Signed) -> str | None:
    """The timestamp as it was signed; empty when it is none, None when the scheme has none."""
    if scheme.timestamp_header:
        given = request.headers.get(scheme.timestamp_header, "")
    elif scheme.timestamp_prefix:
        prefix = scheme.timestamp_prefix
        given = next((value[len(prefix) :] for value in values if value.startswith(prefix)), "")
    elif scheme.timestamp_field:
        found = request.head.get(scheme.timestamp_field)
        given = str(found) if isinstance(found, int) else ""
    else:
        return None
    return given if given.isascii() and given.isdigit() and len(given) <= _MAX_TIMESTAMP_DIGITS else ""


def _staleness(scheme: Scheme, timestamp: str, now: datetime) -> str:
    signed_at = int(timestamp) / 1000 if scheme.timestamp_field else int(timestamp)
    age_s = now.timestamp() - signed_at
    if abs(age_s) <= TOLERANCE_S:
        return ""
    when = f"{age_s:.0f} s before" if age_s > 0 else f"{-age_s:.0f} s after"
    return f"the request was signed {when} it arrived, and at most {TOLERANCE_S} s are accepted"
