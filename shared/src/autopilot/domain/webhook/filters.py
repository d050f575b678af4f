"""Which events of a webhook trigger start a run (S9.9)."""

from __future__ import annotations

import unicodedata
from typing import Final, cast

from msgspec import Struct

from autopilot.domain.errors import InvalidValue
from autopilot.domain.webhook.envelope import bare_name, event_payload
from autopilot.domain.webhook.providers import Provider

FIELD: Final = "event_filters"
MAX_FILTERS: Final = 50
MAX_ACTIONS: Final = 50
MAX_NAME_LENGTH: Final = 100

_ACTION_FIELDS: Final = ("action", "state", "conclusion", "status")


class EventFilter(Struct, frozen=True, kw_only=True):
    """One row: an event, and the actions it is narrowed to (None: whatever the action)."""

    event: str
    actions: list[str] | None = None


def parse_filters(value: object) -> list[EventFilter]:
    """Read `[{event, actions?}]`; null is no filter, no actions are any action. InvalidValue says which row is wrong."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidValue(FIELD, "must be a list of {event, actions?}")
    rows = cast(list[object], value)
    if len(rows) > MAX_FILTERS:
        raise InvalidValue(FIELD, f"at most {MAX_FILTERS} filters")
    return [_parse_row(number, row) for number, row in enumerate(rows, start=1)]


def matches(filters: object, provider: Provider, event: str, value: object) -> bool:
    """Whether any row wants the event; no rows want all, filters that cannot be read want none.

    `filters` are EventFilters or the stored JSON value; `value` is the body's value or its head.
    """
    if filters is None or filters == []:
        return True
    try:
        rows = _as_rows(filters)
    except InvalidValue:
        return False
    name = bare_name(provider, event)
    payload = event_payload(provider, value)
    head, _, suffix = name.partition(".")
    actions = {suffix}
    if isinstance(payload, dict):
        fields = cast(dict[str, object], payload)
        actions |= {found for field in _ACTION_FIELDS if isinstance(found := fields.get(field), str)}
    return any(
        bare_name(provider, row.event) in (name, head)
        and (not row.actions or not actions.isdisjoint(row.actions))
        for row in rows
    )


def _as_rows(filters: object) -> list[EventFilter]:
    if isinstance(filters, list) and all(isinstance(row, EventFilter) for row in filters):
        return cast(list[EventFilter], filters)
    return parse_filters(filters)


def _parse_row(number: int, row: object) -> EventFilter:
    if not isinstance(row, dict):
        raise InvalidValue(FIELD, f"filter {number} must be an object {{event, actions?}}")
    fields = cast(dict[str, object], row)
    if unknown := sorted(fields.keys() - {"event", "actions"}):
        raise InvalidValue(FIELD, f"filter {number} has the unknown field {unknown[0]!r}")
    event = _name(fields.get("event"), f"event of filter {number}")
    actions = fields.get("actions")
    if actions is None or actions == []:
        return EventFilter(event=event)
    if not isinstance(actions, list):
        raise InvalidValue(FIELD, f"actions of filter {number} must be a list of strings")
    names = cast(list[object], actions)
    if len(names) > MAX_ACTIONS:
        raise InvalidValue(FIELD, f"filter {number} has more than {MAX_ACTIONS} actions")
    return EventFilter(event=event, actions=[_name(name, f"action of filter {number}") for name in names])


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(FIELD, f"{what} must be a non-empty string")
    if len(value) > MAX_NAME_LENGTH:
        raise InvalidValue(FIELD, f"{what} is longer than {MAX_NAME_LENGTH} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise InvalidValue(FIELD, f"{what} has a control character")
    return value
