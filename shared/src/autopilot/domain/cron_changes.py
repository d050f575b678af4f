"""What the next clock change does to a schedule, in words (S8.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

from autopilot.domain.cron import CronSchedule, Zone, occurrences, zone

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HORIZON: Final = timedelta(days=3_653)
_FORETOLD: Final = datetime(2100, 1, 1, tzinfo=UTC)
_LISTED: Final = 4
_HOUR: Final = 3_600
_DAY: Final = 86_400
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def describe_next_change(schedule: CronSchedule, zone: Zone, now: datetime) -> str | None:
    """The first change after `now`, within ten years, that moves, drops or repeats some of its times.

    From 2100 on none is told: nobody knows those, and an instant that a caller chose would fill tables for each decade.
    """
    if now >= _FORETOLD:
        return None
    for second, before, after in _changes(zone, now):
        if not _has_time_in(schedule, second + min(before, after), abs(after - before)):
            continue
        words = _describe(schedule, _EPOCH + timedelta(seconds=second), before, after)
        if words is not None:
            return words
    return None


def _changes(zone: Zone, now: datetime) -> Iterator[tuple[int, int, int]]:
    """(the instant in seconds since the epoch, the offset before it, the offset from then on)"""
    span = zone.span((now - _EPOCH) // timedelta(seconds=1))
    end = (now + _HORIZON - _EPOCH) // timedelta(seconds=1)
    while span.stop < end:
        following = zone.span(span.stop)
        if following.offset != span.offset:
            yield span.stop, span.offset, following.offset
        span = following


def _has_time_in(schedule: CronSchedule, local: int, length: int) -> bool:
    """Whether the stretch of wall-clock time, in seconds, has one of its times, whatever the day."""
    two_days = schedule.day_minutes | schedule.day_minutes << 1440
    return length > _DAY or bool(two_days >> local // 60 % 1440 & ((1 << -(-length // 60)) - 1))


def _describe(schedule: CronSchedule, instant: datetime, before: int, after: int) -> str | None:
    """The instant is a change between two offsets: the wall clock leaves out, or shows twice, the times in between."""
    low, high = (instant + timedelta(seconds=offset) for offset in sorted((before, after)))
    times = _matches(schedule, low, high)
    if not times:
        return None
    if schedule.elapsed:
        if _goes_through(schedule) and (high - low).seconds % _HOUR == 0:
            return None
        return f"on {_day(times[0])} " + (
            f"not at {_listed(times, 'or')}" if after > before else f"twice at {_listed(times)}"
        )
    if after < before:
        return f"on {_day(times[0])} once{' each' if len(times) > 1 else ''}, at the first {_listed(times)}"
    return _moved(schedule, times, high)


def _moved(schedule: CronSchedule, times: Sequence[datetime], end: datetime) -> str:
    """All times in a gap make one run when it ends."""
    if _matches(schedule, end, end + timedelta(minutes=1)):
        return f"on {_day(times[0])} not at {_listed(times, 'or')}"
    words = f"on {_day(end)} at {end:%H:%M}"
    midnight = datetime.combine(end.date(), datetime.min.time(), UTC)
    others = _matches(schedule, midnight, midnight + timedelta(days=1))
    if others == times and len(times) == 1:
        return words
    day_before = " the day before" if times[0].date() < end.date() else ""
    return f"{words} instead of {_listed(times)}{day_before}"


def _matches(schedule: CronSchedule, low: datetime, high: datetime) -> list[datetime]:
    """The matching wall-clock times in [low, high), as if the clock showed UTC."""
    until = high - timedelta(seconds=1)
    return occurrences(schedule, zone("UTC"), low - timedelta(seconds=1), until=until, limit=2_000)


def _goes_through(schedule: CronSchedule) -> bool:
    """Whether it runs in every hour of every day alike, so that a whole hour more or less changes nothing."""
    hour = schedule.day_minutes & ((1 << 60) - 1)
    return schedule.every_day and schedule.day_minutes == sum(hour << (60 * n) for n in range(24))


def _listed(times: Sequence[datetime], last: str = "and") -> str:
    words = [f"{t:%H:%M}" for t in times]
    if len(words) > _LISTED:
        return f"the {len(words)} times from {words[0]} to {words[-1]}"
    *most, final = words
    return f"{', '.join(most)} {last} {final}" if most else final


def _day(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
