"""Cron schedules: one implementation for save, preview, planning, explain and command line (S8).

An expression is expanded once into bitmasks. A day's minutes are one 1,440-bit number and a month's days one
number for each weekday the month can begin on, so the next match is a shift and a lowest bit. That search runs on
wall-clock time; the zone's spans of constant offset then map it to UTC:

- elapsed (S8.4: hour or minute is a star): a match counts wherever the clock really shows it, so both sides of a
  fold and nothing inside a gap;
- fixed: a match runs at the first instant at which the clock shows it *or later*. That one sentence gives the first
  pass of a fold, the first instant after a gap, and one run for all times inside one gap.
"""

from __future__ import annotations

from calendar import isleap
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from autopilot.domain.cron_fields import InvalidCron, read_fields
from autopilot.domain.cron_zone import InvalidTimezone, Zone, tzdata_version, zone, zone_names

__all__ = [
    "CronSchedule",
    "InvalidCron",
    "InvalidTimezone",
    "Zone",
    "newest_until",
    "next_after",
    "occurrences",
    "parse",
    "tzdata_version",
    "zone",
    "zone_names",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_DAY: Final = 86_400
_FIRST: Final = int(timedelta(days=3 - _EPOCH_ORDINAL).total_seconds())  # 0001-01-03
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
# Calendar and weekdays repeat every 400 years, and past 2100 so does every zone: only the first cycle is computed.
_CYCLE: Final = 146_097 * _DAY
_CYCLE_START: Final = 4_102_444_800
_MINUTES: Final = tuple(timedelta(minutes=minute) for minute in range(1440))
_MONTH_LENGTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class CronSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed expression; `expr` is its text with single blanks.

    `day_minutes` has a bit per matching minute of a day, the first of which begins at `first_second`; `months` one
    per month of a year and of the next (the lowest is January); `month_days[w]` one per matching day of a month whose
    first day is weekday w (0 is Sunday). `elapsed` picks the rule for DST, `every_day` skips the calendar.
    """

    expr: str
    day_minutes: int
    first_second: int
    months: int
    month_days: tuple[int, ...]
    every_day: bool
    elapsed: bool
    never_fires: bool


@lru_cache(maxsize=4096)
def parse(expr: str) -> CronSchedule:
    """Read five fields. Raises InvalidCron. An impossible date (`0 0 31 2 *`) is valid and `never_fires`."""
    text, (minute, hour, day, month, weekday) = read_fields(expr)
    either = not (day.unrestricted or weekday.unrestricted)
    month_days = tuple(_month_days(day.mask, weekday.mask, first, either=either) for first in range(7))
    months = month.mask >> 1
    day_minutes = sum(minute.mask << (60 * h) for h in range(24) if hour.mask >> h & 1)
    return CronSchedule(
        expr=text,
        day_minutes=day_minutes,
        first_second=((day_minutes & -day_minutes).bit_length() - 1) * 60,
        months=months | months << 12,
        month_days=month_days,
        every_day=months == 0xFFF and min(month_days) == 0xFFFF_FFFE,
        elapsed=minute.is_star or hour.is_star,
        never_fires=not any(
            months >> m & 1 and days & ((2 << length + (m == 1)) - 1)
            for m, length in enumerate(_MONTH_LENGTHS)
            for days in month_days
        ),
    )


def next_after(schedule: CronSchedule, zone: Zone, t: datetime) -> datetime | None:
    """The first occurrence strictly later than `t`, in UTC; None if there is none, ever.

    `t` is aware. The cost is bounded for every expression, zone and instant; an occurrence after the year 9999 is none.
    """
    if schedule.never_fires:
        return None
    since = t - _EPOCH
    after = since.days * _DAY + since.seconds
    if not _FIRST <= after < _CYCLE_START:
        return _next_far_away(schedule, zone, after)
    return _instant((_next_elapsed if schedule.elapsed else _next_fixed)(schedule, zone, after))


def occurrences(
    schedule: CronSchedule, zone: Zone, after: datetime, *, until: datetime | None = None, limit: int
) -> list[datetime]:
    """The occurrences in (after, until], oldest first, at most `limit`."""
    found: list[datetime] = []
    t = next_after(schedule, zone, after) if limit > 0 else None
    while t is not None and (until is None or t <= until):
        found.append(t)
        t = next_after(schedule, zone, t) if len(found) < limit else None
    return found


def newest_until(schedule: CronSchedule, zone: Zone, *, known: datetime, until: datetime) -> datetime:
    """The newest occurrence in (known, until], or `known` if there is none.

    It halves the stretch instead of walking it: some 30 steps for any number of occurrences between.
    """
    newest, beyond = known, until
    following = next_after(schedule, zone, newest)
    while following is not None and newest < following <= until:
        newest = following
        middle = newest + (beyond - newest) / 2
        if middle > newest:
            candidate = next_after(schedule, zone, middle)
            if candidate is not None and candidate <= until:
                newest = candidate
            else:
                beyond = middle
        following = next_after(schedule, zone, newest)
    return newest


def _next_far_away(schedule: CronSchedule, zone: Zone, after: int) -> datetime | None:
    cycles = max(0, (after - _CYCLE_START) // _CYCLE)
    after = max(after, _FIRST) - cycles * _CYCLE
    found = (_next_elapsed if schedule.elapsed else _next_fixed)(schedule, zone, after) + cycles * _CYCLE
    return _instant(found) if found <= _LAST else None


def _instant(second: int) -> datetime:
    """The epoch plus that many seconds, without making a timedelta of them, which takes longer than all the rest."""
    if second % 60:  # only where a local mean time of old counts seconds
        return _EPOCH + timedelta(seconds=second)
    minute = second // 60
    return _midnight(minute // 1440) + _MINUTES[minute % 1440]


@lru_cache(maxsize=4096)
def _midnight(day: int) -> datetime:
    return _EPOCH + timedelta(days=day)


def _next_fixed(schedule: CronSchedule, zone: Zone, after: int) -> int:
    _, stop, offset, reached = zone.span(after)
    local = after + offset
    local = _next_local(schedule, local if local >= reached else reached - 1)
    second = local - offset
    return second if second < stop else zone.first_reaching(local)


def _next_elapsed(schedule: CronSchedule, zone: Zone, after: int) -> int:
    _, stop, offset, _ = zone.span(after)
    second = _next_local(schedule, after + offset) - offset
    while second >= stop:
        start = stop  # itself a possible match, as the first instant of its span
        _, stop, offset, _ = zone.span(start)
        second = _next_local(schedule, start + offset - 1) - offset
    return second


def _next_local(schedule: CronSchedule, after: int) -> int:
    """The first matching wall-clock time after `after`, both in seconds as if the clock showed UTC.

    The schedule must be able to fire; the longest wait is eight years, for 29 February about a year like 2100.
    """
    minute = after // 60 + 1
    day = minute // 1440
    if schedule.every_day:
        minutes = schedule.day_minutes >> minute % 1440
        if minutes:
            return (minute + (minutes & -minutes).bit_length() - 1) * 60
        return (day + 1) * _DAY + schedule.first_second
    today = date.fromordinal(day + _EPOCH_ORDINAL)
    month = today.year * 12 + today.month - 1
    days = 0
    if schedule.months >> month % 12 & 1:
        _, weekday, within = _month(month)
        days = (schedule.month_days[weekday] & within) >> today.day
    if days & 1:
        minutes = schedule.day_minutes >> minute % 1440
        if minutes:
            return (minute + (minutes & -minutes).bit_length() - 1) * 60
    days >>= 1
    if days:
        return (day + (days & -days).bit_length()) * _DAY + schedule.first_second
    return _first_day_after(schedule, month) * _DAY + schedule.first_second


def _first_day_after(schedule: CronSchedule, month: int) -> int:
    """The first matching day after that month."""
    while True:
        later = schedule.months >> month % 12 + 1
        month += (later & -later).bit_length()
        eve, weekday, within = _month(month)
        days = schedule.month_days[weekday] & within
        if days:
            return eve + (days & -days).bit_length() - 1


class _Month(NamedTuple):
    """A month of a year: the day before its first, the weekday of its first, and a bit for each of its days."""

    eve: int
    first_weekday: int
    days: int


@lru_cache(maxsize=4096)
def _month(number: int) -> _Month:
    """Months are counted from January of the year 0."""
    year, month = divmod(number, 12)
    eve = date(year, month + 1, 1).toordinal() - _EPOCH_ORDINAL - 1
    length = 29 if month == 1 and isleap(year) else _MONTH_LENGTHS[month]
    return _Month(eve, (eve + 5) % 7, (2 << length) - 2)


def _month_days(days: int, weekdays: int, first: int, *, either: bool) -> int:
    by_weekday = sum(1 << nth for nth in range(1, 32) if weekdays >> (first + nth - 1) % 7 & 1)
    return days | by_weekday if either else days & by_weekday
