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

_SIGNATURES: Final = tuple(dict.fromkeys(row.signature.header for row in PROVIDERS.values()))
_KEPT: Final = (
    "Content-Type",
    "User-Agent",
    *(
        header
        for row in PROVIDERS.values()
        for header in (row.event_header, row.delivery_id_header)
        if header
    ),
    EVENT_TYPE_HEADER,
    IDEMPOTENCY_KEY,
)


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
    kept = {name: _storable(headers[name]) for name in _KEPT if name in headers}
    return kept | dict.fromkeys((name for name in _SIGNATURES if name in headers), "present")


def _storable(value: str) -> str:
    """Text that JSON in the database can hold: bytes that are not UTF-8, and NUL, show as `?`."""
    return value[:_MAX_HEADER_LENGTH].encode("utf-8", "replace").decode().replace("\0", "?")
