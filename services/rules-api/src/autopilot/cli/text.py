"""Texts of other people made safe and short for a terminal, and times that say their zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

# Control characters, and the marks that reorder text: a title must not steer the terminal that shows it.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNSEEN_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BLANKS = re.compile(r"\s+")

_GROUP_ENDS = (8, 13, 18, 23)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def one_line(text: str) -> str:
    """The text on one line, with what a terminal would obey shown as �."""
    return _UNSEEN.sub("\ufffd", _BLANKS.sub(" ", text)).strip()


def safe_json(text: str) -> str:
    """The same JSON with what a terminal would obey written as escapes."""
    return _UNSEEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def past(moment: datetime | None, now: datetime, zone: tzinfo | None) -> str:
    """Such as `5m ago (13:05 UTC)`; a zone of None is the viewer's own."""
    if moment is None:
        return "-"
    return f"{_span(now - moment)} ago ({clock_time(moment, now, zone)})"


def coming(moment: datetime | None, now: datetime, zone: tzinfo | None) -> str:
    """Such as `in 2h (16:00 UTC)`; what should have happened already is said to be due."""
    if moment is None:
        return "-"
    relative = f"in {_span(moment - now)}" if moment > now else "due"
    return f"{relative} ({clock_time(moment, now, zone)})"


def clock_time(moment: datetime, now: datetime, zone: tzinfo | None) -> str:
    """The time of day, with the date unless it is today, and with the zone."""
    local, today = moment.astimezone(zone), now.astimezone(zone)
    shape = "%H:%M" if local.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"{local.strftime(shape)} {zone_label(local)}"


def zone_label(local: datetime) -> str:
    """The name of the zone, or its offset where it has no name."""
    name = local.tzname() or ""
    return f"UTC{name}" if name[:1] in "+-" else name


def lasted(began: datetime | None, ended: datetime | None) -> str:
    """How long something took, such as `3m`."""
    return "-" if began is None or ended is None else _span(ended - began)


def _span(span: timedelta) -> str:
    seconds = max(0, round(span.total_seconds()))
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "0s"


def short_ids(ids: list[str]) -> list[str]:
    """The ids cut to as few of their groups as still differ from each other; 8 characters are the least."""
    different = len(set(ids))
    for length in _GROUP_ENDS:
        short = [text[:length] for text in ids]
        if len(set(short)) == different:
            return short
    return ids
