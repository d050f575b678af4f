"""What happened and with which payload: the event's name and the envelope that a run carries (S9.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autopilot.domain.webhook.body import BadBody as BadBody
from autopilot.domain.webhook.body import ParsedBody as ParsedBody
from autopilot.domain.webhook.body import parse_body as parse_body
from autopilot.domain.webhook.providers import (
    GENERIC,
    PROVIDERS,
    Path,
    Provider,
    header_text,
    senders,
    text_at,
)

EVENT_TYPE_HEADER: Final = "X-Event-Type"
UNNAMED_EVENT: Final = "webhook.received"
MAX_EVENT_LENGTH: Final = 255
MAX_ECHO_LENGTH: Final = 1_000
_OWN_WORDS: Final[tuple[Path, ...]] = (("event",), ("type",), ("action",))


def read_event(provider: Provider, headers: Mapping[str, str], value: object) -> str:
    """The event's name, from the first place that gives one (S9.4); BadBody beyond 255 characters.

    `value` is the body's value or its head; `headers` looks names up without regard to case. A generic trigger
    knows the headers of every provider in the table, since senders of all kinds are pointed at it.
    """
    event = _named(provider, headers, value)
    if len(event) > MAX_EVENT_LENGTH:
        raise BadBody(f"the event's name is longer than {MAX_EVENT_LENGTH} characters", field="event")
    return event


def envelope(
    event: str, value: object, provider: Provider, received_at: str, content_type: str | None
) -> dict[str, object]:
    """The run's view of a delivery; `received_at` is RFC 3339."""
    return {
        "event": event,
        "eventPayload": event_payload(provider, value),
        "request": {"receivedAt": received_at, "contentType": content_type},
    }


def event_payload(provider: Provider, value: object) -> object:
    """The part of the body that is the event's own: for a generic envelope its `eventPayload`, else all of it."""
    if (
        provider is GENERIC
        and isinstance(value, dict)
        and "eventPayload" in value
        and text_at(value, ("event",))
    ):
        return value["eventPayload"]
    return value


def bare_name(provider: Provider, event: str) -> str:
    """The event's name without the prefix of the provider that gave it."""
    return _origin(provider, event)[1]


def is_ping(provider: Provider, event: str) -> bool:
    """Whether the event only asks if someone is there (S9.8 `provider_ping`)."""
    sender, name = _origin(provider, event)
    handshake = sender.handshake
    if handshake is not None and name == handshake.event:
        return True
    return name in sender.ping_events or name.partition(".")[0] in sender.ping_events


def handshake_answer(provider: Provider, event: str, value: object) -> dict[str, str] | None:
    """What a provider that asks who we are is to be told instead of what became of its delivery (S9.8)."""
    handshake = provider.handshake
    if handshake is None or bare_name(provider, event) != handshake.event:
        return None
    echo = text_at(value, (handshake.echo,))
    return {handshake.echo: echo} if echo is not None and len(echo) <= MAX_ECHO_LENGTH else None


def _origin(provider: Provider, event: str) -> tuple[Provider, str]:
    prefix, dot, rest = event.partition(".")
    sender = PROVIDERS.get(prefix)
    if dot and sender is not None:
        if sender is provider and (sender.event_headers or sender.event_fields):
            return sender, rest
        if provider is GENERIC and sender.event_headers:
            return sender, rest
    return provider, event


def _named(provider: Provider, headers: Mapping[str, str], value: object) -> str:
    if provider is GENERIC and (event := text_at(value, ("event",))):
        return event
    for sender in senders(provider):
        if event := _own_name(sender, headers, value):
            action = _first(value, sender.action_fields)
            return ".".join(filter(None, (sender.name, event, action)))
    if (event := header_text(headers, EVENT_TYPE_HEADER)).strip():
        return event
    return _first(value, _OWN_WORDS) or UNNAMED_EVENT


def _own_name(sender: Provider, headers: Mapping[str, str], value: object) -> str | None:
    for header in sender.event_headers:
        if (event := header_text(headers, header)).strip():
            return event
    return _first(value, sender.event_fields)


def _first(value: object, paths: tuple[Path, ...]) -> str | None:
    for path in paths:
        if found := text_at(value, path):
            return found
    return None
