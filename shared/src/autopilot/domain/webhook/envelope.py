"""What happened and with which payload: the event's name and the envelope that a run carries (S9.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autopilot.domain.webhook.body import BadBody as BadBody
from autopilot.domain.webhook.body import ParsedBody as ParsedBody
from autopilot.domain.webhook.body import parse_body as parse_body
from autopilot.domain.webhook.providers import GENERIC, PROVIDERS, Provider, header_text

EVENT_TYPE_HEADER: Final = "X-Event-Type"
UNNAMED_EVENT: Final = "webhook.received"
MAX_EVENT_LENGTH: Final = 255


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
    if provider is GENERIC and isinstance(value, dict) and _text(value, "event") and "eventPayload" in value:
        return value["eventPayload"]
    return value


def bare_name(provider: Provider, event: str) -> str:
    """The event's name without the prefix of the provider whose header gave it."""
    return _origin(provider, event)[1]


def is_ping(provider: Provider, event: str) -> bool:
    """Whether the event only asks if someone is there (S9.8 `provider_ping`)."""
    sender, name = _origin(provider, event)
    return name.partition(".")[0] in sender.ping_events


def _origin(provider: Provider, event: str) -> tuple[Provider, str]:
    prefix, dot, rest = event.partition(".")
    sender = PROVIDERS.get(prefix)
    if dot and sender and sender.event_header and provider in (sender, GENERIC):
        return sender, rest
    return provider, event


def _named(provider: Provider, headers: Mapping[str, str], value: object) -> str:
    if provider is GENERIC and (event := _text(value, "event")):
        return event
    for sender in PROVIDERS.values() if provider is GENERIC else (provider,):
        if sender.event_header and (event := header_text(headers, sender.event_header)).strip():
            action = _text(value, "action") if sender.event_takes_action else None
            return ".".join(filter(None, (sender.name, event, action)))
    if (event := header_text(headers, EVENT_TYPE_HEADER)).strip():
        return event
    return _text(value, "event") or _text(value, "type") or _text(value, "action") or UNNAMED_EVENT


def _text(value: object, field: str) -> str | None:
    """A string field that says something; NUL, which a name in the database cannot hold, shows as U+FFFD."""
    found = value.get(field) if isinstance(value, dict) else None
    return found.replace("\0", "\ufffd") if isinstance(found, str) and found.strip() else None
