"""The token in a webhook's URL, and what may be kept of a request's headers (S9.1, S9.6)."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Final

from autopilot.domain.webhook.envelope import EVENT_TYPE_HEADER
from autopilot.domain.webhook.providers import IDEMPOTENCY_KEY, PROVIDERS

TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"awt_[A-Za-z0-9_-]{43}")
_MAX_HEADER_LENGTH: Final = 300

_PRESENT: Final = "present"


def _by_lower_name() -> dict[str, tuple[str, bool]]:
    """The headers that are kept, with whether their value may be."""
    told = ["Content-Type", "User-Agent", EVENT_TYPE_HEADER, IDEMPOTENCY_KEY]
    secret: list[str] = []
    for row in PROVIDERS.values():
        told += [*row.event_headers, *row.delivery_headers]
        for scheme in row.schemes:
            secret.append(scheme.header)
            told += [header for header in (scheme.id_header, scheme.timestamp_header) if header]
    kept = {name.lower(): (name, True) for name in told}
    return kept | {name.lower(): (name, False) for name in secret}


_KEPT: Final = _by_lower_name()


def new_webhook_token(random32: bytes) -> str:
    """The token made of 32 random bytes."""
    if len(random32) != TOKEN_BYTES:
        raise ValueError(f"a token is made of {TOKEN_BYTES} bytes")
    return "awt_" + urlsafe_b64encode(random32).rstrip(b"=").decode()


def looks_like_token(text: str) -> bool:
    """Whether a look-up is worth its cost."""
    return _TOKEN.fullmatch(text) is not None


def token_hash(token: str) -> bytes:
    """What a token is looked up by: its SHA-256."""
    return hashlib.sha256(token.encode()).digest()


def hint(secret: str) -> str:
    """The last four characters: enough to recognise a secret, useless without the rest."""
    return secret[-4:]


def stored_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers a delivery keeps: a short list, long values cut, of signatures only that there was one."""
    kept: dict[str, str] = {}
    for given, value in headers.items():
        known = _KEPT.get(given.lower())
        if known is not None:
            name, telling = known
            kept.setdefault(name, _storable(value) if telling else _PRESENT)
    return kept


def _storable(value: str) -> str:
    """Text that JSON in the database can hold: bytes that are not UTF-8, and NUL, show as `?`."""
    if len(value) <= _MAX_HEADER_LENGTH and value.isascii() and "\0" not in value:
        return value
    return value[:_MAX_HEADER_LENGTH].encode("utf-8", "replace").decode().replace("\0", "?")
