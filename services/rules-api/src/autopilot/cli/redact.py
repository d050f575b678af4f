"""What `get` hides unless told otherwise: whoever holds a webhook's token may fire it (S6.5, S14)."""

from __future__ import annotations

import json
from typing import Any

_HIDDEN = ("webhook_token", "webhook_path", "webhook_url")
_HINT_LENGTH = 4


def redacted(raw: bytes) -> bytes:
    """The JSON with each webhook's token, path and URL null, and with `has_webhook_token` and `webhook_token_hint`.

    A caller without the right to write gets no token to begin with: then there is a token but no hint.
    """
    return json.dumps(_redact(json.loads(raw)), ensure_ascii=False).encode()


def _redact(value: Any) -> Any:
    if isinstance(value, list):
        return [_redact(item) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {name: _redact(inner) for name, inner in value.items()}
    if any(name in shown for name in _HIDDEN):
        token = shown.get("webhook_token")
        shown |= dict.fromkeys(_HIDDEN)
        shown["has_webhook_token"] = token is not None or shown.get("kind") == "webhook"
        shown["webhook_token_hint"] = token[-_HINT_LENGTH:] if isinstance(token, str) else None
    return shown
