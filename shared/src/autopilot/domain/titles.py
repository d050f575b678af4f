"""Issue titles: the template with its one variable, and the day it stands for (S3.3)."""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime
from typing import Final
from zoneinfo import ZoneInfo

from autopilot.domain.errors import InvalidValue

FIELD: Final = "issue_title_template"
MAX_LENGTH: Final = 200

_TOKEN: Final = re.compile(r"\{\{(.*?)\}\}")
_ANY_DAY: Final = date(2000, 1, 1)


def check_template(text: str) -> None:
    """Refuse a template whose tokens are not all `{{date}}`, or whose title would be too long."""
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise InvalidValue(FIELD, "has a line break or another control character")
    for token in _TOKEN.finditer(text):
        if token[1].strip() != "date":
            raise InvalidValue(FIELD, f"unknown token {token[0][:100]}: the only variable is {{{{date}}}}")
    if max(len(text), len(render_title(text, "", on=_ANY_DAY))) > MAX_LENGTH:
        raise InvalidValue(FIELD, f"is longer than {MAX_LENGTH} characters")


def render_title(template: str | None, title: str, *, on: date) -> str:
    """The template with its date filled in; without a template the title, as it is."""
    if template is None or not template.strip():
        return title
    return _TOKEN.sub(on.isoformat(), template)


def told_instant(
    source: str, planned_at: datetime | None, received_at: datetime | None, admitted_at: datetime
) -> datetime:
    """The instant a run speaks of: planned for schedules, received for webhooks, else admitted."""
    if source == "schedule":
        return planned_at or admitted_at
    if source == "webhook":
        return received_at or admitted_at
    return admitted_at


def title_date(
    source: str,
    tz_name: str | None,
    planned_at: datetime | None,
    received_at: datetime | None,
    admitted_at: datetime,
) -> date:
    """The day of the run in the trigger's timezone, UTC without one; never the day of dispatch."""
    instant = told_instant(source, planned_at, received_at, admitted_at)
    return instant.astimezone(ZoneInfo(tz_name or "UTC")).date()
