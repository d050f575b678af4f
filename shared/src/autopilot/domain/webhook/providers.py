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
Path = tuple[str, ...]


class Scheme(Struct, frozen=True, kw_only=True):
    """One way to prove who sent a request: `header` holds `prefix` and an HMAC-SHA256 over `before_body` and the raw body.

    `before_body` may name `{id}` and `{timestamp}`. With `separator` the header lists several values, any of which
    may fit. The timestamp, in seconds, is in a header of its own, in the list under `timestamp_prefix`, or, in
    milliseconds, a field of the body. Encoding `secret` is the secret itself instead of an HMAC. A `base64` key is
    written as `whsec_` and the base64 of its bytes.
    """

    header: str
    encoding: Literal["hex", "base64", "secret"] = "hex"
    prefix: str = ""
    separator: str = ""
    before_body: str = ""
    id_header: str = ""
    timestamp_header: str = ""
    timestamp_prefix: str = ""
    timestamp_field: str = ""
    key: Literal["text", "base64"] = "text"


class Handshake(Struct, frozen=True, kw_only=True):
    """The event by which a provider asks whether we are who we seem, and the field that is to be sent back."""

    event: str
    echo: str


class Provider(Struct, frozen=True, kw_only=True):
    """How one provider speaks. Of several places the first that says something counts, headers before fields.

    With neither `event_headers` nor `event_fields` its events are named like those of any sender. `ping_events` and
    `handshake` are names without the provider's prefix, up to their action.
    """

    name: str
    aliases: tuple[str, ...] = ()
    schemes: tuple[Scheme, ...]
    event_headers: tuple[str, ...] = ()
    event_fields: tuple[Path, ...] = ()
    action_fields: tuple[Path, ...] = ()
    delivery_headers: tuple[str, ...] = ()
    delivery_fields: tuple[Path, ...] = ()
    ping_events: frozenset[str] = frozenset()
    handshake: Handshake | None = None


def _standard_scheme(prefix: str) -> Scheme:
    return Scheme(
        header=f"{prefix}-signature",
        encoding="base64",
        prefix="v1,",
        separator=" ",
        before_body="{id}.{timestamp}.",
        id_header=f"{prefix}-id",
        timestamp_header=f"{prefix}-timestamp",
        key="base64",
    )


_HUB: Final = Scheme(header="X-Hub-Signature-256", prefix="sha256=")
_STANDARD: Final = _standard_scheme("webhook")

GENERIC: Final = Provider(name="generic", schemes=(_HUB,))

_ROWS: Final = (
    GENERIC,
    Provider(
        name="github",
        schemes=(_HUB,),
        event_headers=("X-GitHub-Event",),
        action_fields=(("action",),),
        delivery_headers=("X-GitHub-Delivery",),
        ping_events=frozenset({"ping"}),
    ),
    Provider(
        name="gitlab",
        schemes=(_STANDARD, Scheme(header="X-Gitlab-Token", encoding="secret")),
        event_headers=("X-Gitlab-Event",),
        action_fields=(("object_attributes", "action"), ("object_attributes", "status"), ("build_status",)),
        # X-Gitlab-Event-UUID is shared by the events that a webhook's own receiver causes: no id of a delivery.
        delivery_headers=("webhook-id", IDEMPOTENCY_KEY),
    ),
    Provider(
        name="gitea",
        aliases=("forgejo",),
        schemes=(Scheme(header="X-Gitea-Signature"), Scheme(header="X-Forgejo-Signature")),
        event_headers=("X-Gitea-Event", "X-Forgejo-Event"),
        action_fields=(("action",),),
        delivery_headers=("X-Gitea-Delivery", "X-Forgejo-Delivery"),
    ),
    Provider(
        name="bitbucket",
        schemes=(Scheme(header="X-Hub-Signature", prefix="sha256="),),
        event_headers=("X-Event-Key",),
        delivery_headers=("X-Request-UUID", "X-Request-Id"),
        ping_events=frozenset({"diagnostics:ping"}),
    ),
    Provider(
        name="stripe",
        schemes=(
            Scheme(
                header="Stripe-Signature",
                prefix="v1=",
                separator=",",
                before_body="{timestamp}.",
                timestamp_prefix="t=",
            ),
        ),
        event_fields=(("type",),),
        delivery_fields=(("id",),),
        ping_events=frozenset({"v2.core.event_destination.ping"}),
    ),
    Provider(
        name="slack",
        schemes=(
            Scheme(
                header="X-Slack-Signature",
                prefix="v0=",
                before_body="v0:{timestamp}:",
                timestamp_header="X-Slack-Request-Timestamp",
            ),
        ),
        event_fields=(("event", "type"), ("type",), ("command",)),
        action_fields=(("event", "subtype"),),
        delivery_fields=(("event_id",),),
        handshake=Handshake(event="url_verification", echo="challenge"),
    ),
    Provider(
        name="linear",
        schemes=(Scheme(header="Linear-Signature", timestamp_field="webhookTimestamp"),),
        event_headers=("Linear-Event",),
        action_fields=(("action",),),
        delivery_headers=("Linear-Delivery",),
    ),
    Provider(
        name="shopify",
        schemes=(Scheme(header="X-Shopify-Hmac-Sha256", encoding="base64"),),
        event_headers=("X-Shopify-Topic",),
        delivery_headers=("X-Shopify-Webhook-Id",),
    ),
    Provider(
        name="sentry",
        schemes=(Scheme(header="Sentry-Hook-Signature"), Scheme(header="Sentry-App-Signature")),
        event_headers=("Sentry-Hook-Resource",),
        action_fields=(("action",),),
        delivery_headers=("Request-ID",),
    ),
    Provider(
        name="pagerduty",
        schemes=(Scheme(header="X-PagerDuty-Signature", prefix="v1=", separator=","),),
        event_fields=(("event", "event_type"),),
        delivery_fields=(("event", "id"),),
        ping_events=frozenset({"pagey.ping"}),
    ),
    Provider(
        name="standard-webhooks",
        aliases=("svix",),
        schemes=(_STANDARD, _standard_scheme("svix")),
        delivery_headers=("webhook-id", "svix-id"),
    ),
)

PROVIDERS: Final[Mapping[str, Provider]] = MappingProxyType({row.name: row for row in _ROWS})

# Gitea and its kin send GitHub's headers beside their own, so theirs are looked at first.
_BY_HEADER: Final = tuple(
    sorted((row for row in _ROWS if row.event_headers), key=lambda row: row.name == "github")
)

NAMES: Final[Mapping[str, Provider]] = MappingProxyType(
    {name: row for row in _ROWS for name in (row.name, *row.aliases)}
)
"""The rows by every name that they may be chosen by."""


def get(name: str) -> Provider:
    """The row called `name`, or also so called; InvalidValue on `provider` for any other, with the nearest name."""
    provider = NAMES.get(name)
    if provider is not None:
        return provider
    near = get_close_matches(name[:100].strip().lower(), NAMES, n=1)
    advice = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PROVIDERS)}"
    raise InvalidValue("provider", f"unknown provider; {advice}")


def senders(provider: Provider) -> tuple[Provider, ...]:
    """Whose headers may name an event: a generic trigger knows those of every row, since all kinds are pointed at it."""
    return _BY_HEADER if provider is GENERIC else (provider,)


def dedupe_key(
    provider: Provider, headers: Mapping[str, str], value: object
) -> tuple[str, DedupeSource] | None:
    """The key under which a repeat of this request is known, and where it came from (S9.7); None without one.

    `headers` looks names up without regard to case; `value` is the body's value or its head.
    """
    for header in provider.delivery_headers:
        if key := _checked_key(header_text(headers, header), header):
            return key, "delivery_id"
    for path in provider.delivery_fields:
        if key := _checked_key(text_at(value, path) or "", ".".join(path)):
            return key, "delivery_id"
    key = _checked_key(header_text(headers, IDEMPOTENCY_KEY), IDEMPOTENCY_KEY)
    return (key, "idempotency_key") if key else None


def _checked_key(text: str, place: str) -> str:
    key = text.strip()
    if len(key) > MAX_KEY_LENGTH:
        raise BadBody(f"{place} is longer than {MAX_KEY_LENGTH} characters", field=place)
    return key


def text_at(value: object, path: Path) -> str | None:
    """A string field that says something; NUL, which a name in the database cannot hold, shows as U+FFFD."""
    found = value
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found.replace("\0", "\ufffd") if isinstance(found, str) and found.strip() else None


def header_text(headers: Mapping[str, str], name: str) -> str:
    """A header's value as text that can be stored, empty when absent; BadBody when its bytes are not UTF-8."""
    value = headers.get(name, "")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadBody(f"{name} is not UTF-8", field=name)
    return value
