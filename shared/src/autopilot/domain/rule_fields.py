"""What the fields of a rule and of its triggers may hold, whoever sends them (S13.8)."""

from __future__ import annotations

import unicodedata
from datetime import timedelta
from typing import Final

from autopilot.domain.errors import InvalidValue
from autopilot.domain.titles import check_template

MAX_TITLE: Final = 200
MAX_LABEL: Final = 100
MAX_RUNBOOK_BYTES: Final = 64 * 1024
MAX_TRIGGERS: Final = 50
MAX_SUBSCRIBERS: Final = 100
MAX_COLLABORATORS: Final = 100
MIN_SECRET: Final = 16
MAX_SECRET: Final = 256
MAX_PACE_PER_MIN: Final = 6_000
DEFAULT_GRACE: Final = timedelta(hours=24)
MAX_GRACE: Final = timedelta(days=7)


def checked_title(text: str) -> str:
    """A title without outer blanks."""
    return _checked_line("title", text, MAX_TITLE)


def checked_label(text: str | None) -> str | None:
    """A trigger's label; a blank one is none."""
    return None if text is None or not text.strip() else _checked_line("label", text, MAX_LABEL)


def checked_runbook(text: str) -> str:
    if "\0" in text or _has_surrogate(text):
        raise InvalidValue("description", "has a character that cannot be stored")
    if len(text.encode()) > MAX_RUNBOOK_BYTES:
        raise InvalidValue("description", f"is larger than {MAX_RUNBOOK_BYTES // 1024} KiB")
    return text


def checked_template(text: str | None) -> str | None:
    """A title template (S3.3); a blank one is none."""
    if text is None or not text.strip():
        return None
    if _has_surrogate(text):
        raise InvalidValue("issue_title_template", "has a character that cannot be stored")
    check_template(text)
    return text


def checked_secret(text: str, field: str) -> str:
    """A signing secret (S9.16)."""
    if not MIN_SECRET <= len(text) <= MAX_SECRET:
        raise InvalidValue(field, f"must have {MIN_SECRET} to {MAX_SECRET} characters")
    if _has_control(text) or _has_surrogate(text):
        raise InvalidValue(field, "has a line break or another control character")
    return text


def checked_grace(grace_s: int) -> timedelta:
    """How long the previous secret stays valid (S9.13); 0 ends it at once."""
    if not 0 <= grace_s <= MAX_GRACE.total_seconds():
        raise InvalidValue("grace_s", f"must be 0 to {int(MAX_GRACE.total_seconds())} seconds (7 days)")
    return timedelta(seconds=grace_s)


def checked_pace(pace_per_min: int | None) -> int | None:
    if pace_per_min is not None and not 1 <= pace_per_min <= MAX_PACE_PER_MIN:
        raise InvalidValue("pace_per_min", f"must be 1 to {MAX_PACE_PER_MIN}")
    return pace_per_min


def _checked_line(field: str, text: str, limit: int) -> str:
    line = text.strip()
    if not line:
        raise InvalidValue(field, "must not be blank")
    if len(line) > limit:
        raise InvalidValue(field, f"is longer than {limit} characters")
    if _has_control(line) or _has_surrogate(line):
        raise InvalidValue(field, "has a line break or another control character")
    return line


def _has_control(text: str) -> bool:
    return any(unicodedata.category(character) == "Cc" for character in text)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
