"""A schedule in plain words, exact about its days and its zone; what the next clock change does is in `cron_changes`.

The words are made from what a schedule means, not from how it was written: `0 9 * * 1-5` and `0 9 ? * MON,TUE,WED-FRI`
read alike, and `0 0 1-31 * 4` reads as the every day that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

from autopilot.domain.cron import CronSchedule, Zone
from autopilot.domain.cron_changes import MONTHS, describe_next_change

_LISTED_TIMES: Final = 8
_LISTED_VALUES: Final = 4
_EVERY_DAY: Final = (1 << 32) - 2
_MONTH_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def describe(schedule: CronSchedule, zone: Zone, now: datetime) -> str:
    """When it runs, such as "every day at 02:30 America/New_York; on 14 March 2027 at 03:00".

    After the semicolon stands the first clock change after `now`, within ten years, that the schedule does not pass
    through untouched: fixed times that move to the end of a gap or run at their first pass only, and in elapsed time what
    is left out or comes twice (S8.4). A date that never comes "never runs".
    """
    if schedule.never_fires:
        return "never runs"
    times, is_clock_time = _times(schedule.day_minutes)
    days = _days(schedule)
    if is_clock_time:
        words = f"{days} at {times} {zone.key}"
    else:
        words = f"{times} in {zone.key}" + (f", {days}" if days != "every day" else "")
    change = describe_next_change(schedule, zone, now)
    return f"{words}; {change}" if change else words


def _times(day_minutes: int) -> tuple[str, bool]:
    """The times of a day, and whether they are plain times of the clock."""
    hour_masks = [day_minutes >> (60 * hour) & ((1 << 60) - 1) for hour in range(24)]
    hours = tuple(hour for hour in range(24) if hour_masks[hour])
    minutes = _values(hour_masks[hours[0]])
    if len(hours) * len(minutes) <= _LISTED_TIMES:
        return _listed([_clock(hour, minute) for hour in hours for minute in minutes]), True
    step = _step(minutes)
    is_even = len(minutes) > 1 and step is not None and 60 % step == 0 and len(minutes) * step == 60
    if is_even and _step(hours) == 1:
        words = "every minute" if step == 1 else f"every {step} minutes"
        first, last = _clock(hours[0], minutes[0]), _clock(hours[-1], minutes[-1])
        is_unbroken = len(hours) == 24 and minutes[0] == 0
        return (words if is_unbroken else f"{words} from {first} to {last}"), False
    pace = _step(hours)
    if len(minutes) == 1 and len(hours) == 24:
        return f"every hour at minute {minutes[0]}", False
    if len(minutes) == 1 and pace is not None:
        first, last = _clock(hours[0], minutes[0]), _clock(hours[-1], minutes[0])
        return f"every {'hour' if pace == 1 else f'{pace} hours'} from {first} to {last}", False
    return f"{_minutes(minutes)} {_hours(hours)}", False


def _minutes(minutes: Sequence[int]) -> str:
    if len(minutes) == 60:
        return "every minute"
    return f"at minute{'s' if len(minutes) > 1 else ''} {_sequence(minutes)}"


def _hours(hours: Sequence[int]) -> str:
    if len(hours) == 24:
        return "of every hour"
    return f"of hour{'s' if len(hours) > 1 else ''} {_sequence(hours)}"


class _Days(NamedTuple):
    """Days of the month and weekdays (0 is Monday), either of which is enough, in those months (0 is January)."""

    dates: Sequence[int]
    weekdays: Sequence[int]
    months: Sequence[int]


def _days(schedule: CronSchedule) -> str:
    days = _read_days(schedule)
    every_month = len(days.months) == 12
    months = "" if every_month else " in " + _run(tuple(MONTHS[m] for m in days.months), days.months)
    if len(days.dates) == 31:
        return f"every day{months}"
    if not days.dates:
        return _weekdays(days.weekdays) + months
    of = " of every month" if every_month else " of " + months.removeprefix(" in ")
    words = _dates(days.dates) + of + _where_missing(days)
    if not days.weekdays:
        return words
    weekday = _listed([_WEEKDAYS[day] for day in days.weekdays], last="or")
    return f"{words} or any {weekday}{months} (either is enough)"


def _read_days(schedule: CronSchedule) -> _Days:
    """The day fields again, from the days that match in months that begin on each weekday (0 is Sunday)."""
    months = tuple(month for month in range(12) if schedule.months >> month & 1)
    if len(months) < 12:
        months = tuple(month for month in months if _occur(schedule.month_days, _MONTH_LENGTHS[month]))
    longest = max(_MONTH_LENGTHS[month] for month in months)
    always = _EVERY_DAY
    for days in schedule.month_days:
        always &= days
    if always == _EVERY_DAY:
        return _Days(tuple(range(1, 32)), (), months)
    other = _values(_EVERY_DAY & ~always)[0]
    weekdays = (
        (first + other - 2) % 7 for first, days in enumerate(schedule.month_days) if days >> other & 1
    )
    return _Days(_values(always & ((2 << longest) - 1)), tuple(sorted(weekdays)), months)


def _occur(month_days: Sequence[int], length: int) -> bool:
    return any(days & ((2 << length) - 1) for days in month_days)


def _weekdays(weekdays: Sequence[int]) -> str:
    names = [_WEEKDAYS[day] for day in weekdays]
    if len(names) > 2 and _step(weekdays) == 1:
        return f"every day from {names[0]} to {names[-1]}"
    return f"every {_listed(names)}"


def _dates(dates: Sequence[int]) -> str:
    return f"on day{'s' if len(dates) > 1 else ''} {_sequence(dates)}"


def _where_missing(days: _Days) -> str:
    """A month without its only day, or all years but leap years, go without."""
    if days.dates == (29,) and days.months == (1,):
        return " in leap years"
    if len(days.dates) == 1 and days.dates[0] > min(_MONTH_LENGTHS[month] for month in days.months):
        return " that has it"
    return ""


def _sequence(values: Sequence[int]) -> str:
    """Numbers as a range, as steps, or one by one."""
    step = _step(values)
    if len(values) > 2 and step == 1:
        return f"{values[0]} to {values[-1]}"
    if len(values) > _LISTED_VALUES and step is not None:
        return f"{values[0]} to {values[-1]} in steps of {step}"
    return _listed([str(value) for value in values])


def _run(names: Sequence[str], values: Sequence[int]) -> str:
    if len(names) > 2 and _step(values) == 1:
        return f"{names[0]} to {names[-1]}"
    return _listed(names)


def _step(values: Sequence[int]) -> int | None:
    """The distance between each and the next, if it is one and the same."""
    steps = {later - earlier for earlier, later in pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


def _listed(words: Sequence[str], last: str = "and") -> str:
    *most, final = words
    return f"{', '.join(most)} {last} {final}" if most else final


def _values(mask: int) -> Sequence[int]:
    return tuple(value for value in range(mask.bit_length()) if mask >> value & 1)


def _clock(hour: int, minute: int) -> str:
    return f"{hour:02}:{minute:02}"
