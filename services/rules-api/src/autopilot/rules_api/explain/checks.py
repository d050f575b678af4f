"""What a walk finds: checks in the order they were made, of which the first that stops or waits is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from autopilot.domain.cron_zone import Zone

MINUTE: Final = timedelta(minutes=1)


class Outcome(StrEnum):
    """`stop`: here it ended. `wait`: here it waits. `ok`: not here. `note`: worth knowing, and no cause."""

    OK = "ok"
    NOTE = "note"
    WAIT = "wait"
    STOP = "stop"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `code` is stable; `facts` are what it stands on; `next_step` says what to do about it."""

    subject: str
    outcome: Outcome
    code: str
    text: str
    facts: dict[str, Any] = {}
    next_step: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing explained: a rule, a trigger, a run, a delivery, or all that happened at a time."""

    about: Literal["autopilot", "trigger", "run", "delivery", "time"]
    id: UUID | None
    verdict: str
    summary: str
    next_step: str | None
    checks: list[Check]


def ok(subject: str, code: str, text: str, **facts: Any) -> Check:
    return Check(subject=subject, outcome=Outcome.OK, code=code, text=text, facts=facts)


def note(subject: str, code: str, text: str, **facts: Any) -> Check:
    return Check(subject=subject, outcome=Outcome.NOTE, code=code, text=text, facts=facts)


def wait(subject: str, code: str, text: str, next_step: str | None = None, **facts: Any) -> Check:
    return Check(
        subject=subject, outcome=Outcome.WAIT, code=code, text=text, facts=facts, next_step=next_step
    )


def stop(subject: str, code: str, text: str, next_step: str | None = None, **facts: Any) -> Check:
    return Check(
        subject=subject, outcome=Outcome.STOP, code=code, text=text, facts=facts, next_step=next_step
    )


def conclude(
    about: Literal["autopilot", "trigger", "run", "delivery", "time"],
    subject_id: UUID | None,
    checks: Sequence[Check],
) -> Finding:
    """The answer of a walk: its first cause, or else its last word."""
    answer = first_cause(checks) or checks[-1]
    return Finding(
        about=about,
        id=subject_id,
        verdict=answer.code,
        summary=answer.text,
        next_step=answer.next_step,
        checks=list(checks),
    )


def first_cause(checks: Sequence[Check]) -> Check | None:
    """The first check that stopped it or has it wait."""
    return next((check for check in checks if check.outcome in (Outcome.STOP, Outcome.WAIT)), None)


def when(moment: datetime, zone: Zone | None = None) -> str:
    """An instant in words, always with its zone: `2026-05-01 17:00 CST (Asia/Shanghai), 09:00 UTC`."""
    seconds = ":%S" if moment.second else ""
    utc = moment.astimezone(UTC).strftime(f"%Y-%m-%d %H:%M{seconds} UTC")
    if zone is None or zone.key == "UTC":
        return utc
    local = moment.astimezone(zone.info)
    return f"{local.strftime(f'%Y-%m-%d %H:%M{seconds} %Z')} ({zone.key}), which is {utc}"


def span(length: timedelta) -> str:
    """A length of time in one unit, such as `3 min`."""
    seconds = max(0, round(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
