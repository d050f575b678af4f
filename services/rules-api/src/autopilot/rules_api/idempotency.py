"""The header by which a caller has a request done once, however often it is sent."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from autopilot.domain.errors import InvalidValue
from autopilot.rules_api.problems import malformed

KEY_HEADER: Final = "Idempotency-Key"
MAX_LENGTH: Final = 255


def read_key(request: web.Request) -> str | None:
    """The idempotency key, a blank one being none; 422 beyond 255 characters."""
    key = request.headers.get(KEY_HEADER, "").strip()
    if not key:
        return None
    if len(key) > MAX_LENGTH:
        raise InvalidValue(KEY_HEADER, f"Idempotency-Key: at most {MAX_LENGTH} characters.")
    try:
        key.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8 reach us as lone surrogates
        raise malformed("Idempotency-Key is not UTF-8.", KEY_HEADER) from None
    return key
