"""Reads the five cron fields strictly (S8.1): a plain reason for every refusal, one bitmask per field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from croniter import croniter

from autopilot.domain.errors import InvalidValue

MAX_LENGTH: Final = 256
_EXTRAS: Final = {
    "L": "'L' (last) is not supported",
    "LW": "'LW' (last weekday) is not supported",
    "W": "'W' (nearest weekday) is not supported",
    "#": "'#' (nth weekday) is not supported",
    "R": "'R' (random) is not supported",
    "H": "'H' (hashed) is not supported",
}


class InvalidCron(InvalidValue):
    """The cron expression is refused. The message names the cron field and the fault (S8.1)."""

    def __init__(self, message: str) -> None:
        super().__init__("cron", message, code="invalid_cron")


class _Kind(NamedTuple):
    """One of the five positions: its name, its values, and how high they may be written (7 is Sunday)."""

    name: str
    low: int
    high: int
    highest_written: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    @property
    def full(self) -> int:
        return ((1 << self.size) - 1) << self.low


_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_KINDS: Final = (
    _Kind("minute", 0, 59, 59),
    _Kind("hour", 0, 23, 23),
    _Kind("day-of-month", 1, 31, 31),
    _Kind("month", 1, 12, 12, _MONTHS),
    _Kind("day-of-week", 0, 6, 7, _WEEKDAYS),
)


class _Element(NamedTuple):
    """One list element as written, its ends resolved; `text` is the same in a form free of dialect."""

    text: str
    is_star: bool
    is_stepped: bool
    runs_through: bool


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field, read.

    `mask` has a bit per matching value. `unrestricted`: a bare star is among its elements. `is_star`: a star in
    the sense of S8.4 (`*`, `?`, `*/n`, `0/n` or the whole range), which makes hours and minutes run in elapsed time.
    """

    mask: int
    unrestricted: bool
    is_star: bool


def read_fields(expr: str) -> tuple[str, tuple[Field, ...]]:
    """The expression with single blanks, and its minute, hour, day-of-month, month and day-of-week.

    Raises InvalidCron.
    """
    if len(expr) > MAX_LENGTH:
        raise InvalidCron(f"the expression is longer than {MAX_LENGTH} characters")
    texts = re.findall(r"[^ \t]+", expr)
    _refuse_other_dialects(texts)
    elements = [_read_field(kind, text) for kind, text in zip(_KINDS, texts, strict=True)]
    expanded, _ = croniter.expand(" ".join(",".join(e.text for e in field) for field in elements))
    fields = tuple(
        _field(kind, field, values) for kind, field, values in zip(_KINDS, elements, expanded, strict=True)
    )
    return " ".join(texts), fields


def _refuse_other_dialects(texts: list[str]) -> None:
    if not texts:
        raise InvalidCron("the expression is empty; write five fields such as '0 9 * * MON-FRI'")
    if re.match(r"(CRON_)?TZ=", texts[0], re.IGNORECASE):
        raise InvalidCron("a TZ= prefix is not supported; use the timezone field")
    if texts[0].startswith("@"):
        raise InvalidCron(f"{texts[0]!r} is not supported; write five fields such as '0 0 * * *'")
    if len(texts) in (6, 7):
        raise InvalidCron(f"seconds and years are not supported: expected five fields, got {len(texts)}")
    if len(texts) != 5:
        raise InvalidCron(
            f"expected five fields (minute hour day-of-month month day-of-week), got {len(texts)}"
        )


def _field(kind: _Kind, elements: list[_Element], values: Sequence[int | str]) -> Field:
    mask = 0
    for value in values:
        mask |= kind.full if isinstance(value, str) else 1 << value
    return Field(
        mask=mask,
        unrestricted=any(e.is_star and not e.is_stepped for e in elements),
        is_star=mask == kind.full or any(e.is_star or e.runs_through for e in elements),
    )


def _read_field(kind: _Kind, text: str) -> list[_Element]:
    if not text.isascii():
        raise InvalidCron(f"{kind.name}: {text!r} has a character that no cron field knows")
    elements = text.upper().split(",")
    if "" in elements:
        raise InvalidCron(f"{kind.name}: {text!r} has an empty list element")
    return [_read_element(kind, element) for element in elements]


def _read_element(kind: _Kind, text: str) -> _Element:
    base, slash, step_text = text.partition("/")
    suffix = f"/{_read_step(kind, text, step_text)}" if slash else ""
    if base in ("*", "?"):
        return _Element(f"*{suffix}", is_star=True, is_stepped=bool(slash), runs_through=True)
    start_text, dash, end_text = base.partition("-")
    start = _read_value(kind, text, start_text)
    if dash:
        end = _read_value(kind, text, end_text)
        if end_text == "SUN" and start > 0:
            end = 7
        if end < start:
            raise InvalidCron(f"{kind.name}: the range {base!r} ends before it starts")
    elif slash:
        start = 0 if kind.highest_written == 7 and start == 7 else start
        end = kind.high
    else:
        end = start
    # croniter reads N-N as the whole cycle, so it is only ever shown N.
    plain = str(start) if start == end else f"{start}-{end}{suffix}"
    runs_through = (dash or slash) and start == kind.low and end >= kind.high
    return _Element(plain, is_star=False, is_stepped=bool(slash), runs_through=bool(runs_through))


def _read_step(kind: _Kind, text: str, step: str) -> int:
    if not (step.isascii() and step.isdigit()):
        raise InvalidCron(f"{kind.name}: the step in {text!r} is not a number")
    if not 1 <= int(step) <= kind.size:
        raise InvalidCron(f"{kind.name}: the step in {text!r} is out of range 1-{kind.size}")
    return int(step)


def _read_value(kind: _Kind, text: str, value: str) -> int:
    if value in kind.names:
        return kind.low + kind.names.index(value)
    if not (value.isascii() and value.isdigit()):
        raise InvalidCron(f"{kind.name}: {_fault(kind, text, value)}")
    if not kind.low <= int(value) <= kind.highest_written:
        raise InvalidCron(f"{kind.name}: {value} is out of range {kind.low}-{kind.highest_written}")
    return int(value)


def _fault(kind: _Kind, text: str, value: str) -> str:
    if not value:
        return f"{text!r} lacks a value"
    sign = "#" if "#" in value else re.sub(r"[\d()]", "", value)
    if sign in _EXTRAS:
        return _EXTRAS[sign]
    return f"{value!r} in {text!r} is not a number" + (" or a three-letter name" if kind.names else "")
