"""The table of webhook providers: a provider is a row, and every rule about it reads the row (S9.5)."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from autopilot.domain.errors import InvalidValue
from autopilot.domain.webhook.body import BadBody

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
MAX_KEY_LENGTH: Final = 255

DedupeSource = Literal["delivery_id", "idempotency_key"]


class HmacHex(Struct, frozen=True, kw_only=True):
    """`header: <prefix><hex of HMAC-SHA256 over the raw body>`."""

    header: str
    prefix: str


class Provider(Struct, frozen=True, kw_only=True):
    """How one provider speaks. `ping_events` are names without the provider's prefix."""

    name: str
    signature: HmacHex
    event_header: str | None = None
    event_takes_action: bool = False
    delivery_id_header: str | None = None
    ping_events: frozenset[str] = frozenset()


_HUB_SIGNATURE: Final = HmacHex(header="X-Hub-Signature-256", prefix="sha256=")

GENERIC: Final = Provider(name="generic", signature=_HUB_SIGNATURE)

_ROWS: Final = (
    GENERIC,
    Provider(
        name="github",
        signature=_HUB_SIGNATURE,
        event_header="X-GitHub-Event",
        event_takes_action=True,
        delivery_id_header="X-GitHub-Delivery",
        ping_events=frozenset({"ping"}),
    ),
)

PROVIDERS: Final[Mapping[str, Provider]] = MappingProxyType({row.name: row for row in _ROWS})


def get(name: str) -> Provider:
    """The row called `name`; InvalidValue on `provider` for any other, with the nearest name."""
    provider = PROVIDERS.get(name)
    if provider is not None:
        return provider
    near = get_close_matches(name[:100].strip().lower(), PROVIDERS, n=1)
    advice = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PROVIDERS)}"
    raise InvalidValue("provider", f"unknown provider; {advice}")


def dedupe_key(provider: Provider, headers: Mapping[str, str]) -> tuple[str, DedupeSource] | None:
    """The key under which a repeat of this request is known, and where it came from (S9.7); None without one.

    `headers` looks names up without regard to case.
    """
    sources: tuple[tuple[str | None, DedupeSource], ...] = (
        (provider.delivery_id_header, "delivery_id"),
        (IDEMPOTENCY_KEY, "idempotency_key"),
    )
    for header, source in sources:
        key = header_text(headers, header).strip() if header else ""
        if len(key) > MAX_KEY_LENGTH:
            raise BadBody(f"{header} is longer than {MAX_KEY_LENGTH} characters", field=header or "")
        if key:
            return key, source
    return None


def header_text(headers: Mapping[str, str], name: str) -> str:
    """A header's value as text that can be stored, empty when absent; BadBody when its bytes are not UTF-8."""
    value = headers.get(name, "")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadBody(f"{name} is not UTF-8", field=name)
    return value
