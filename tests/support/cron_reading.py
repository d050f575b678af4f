"""A second, slow reading of cron expressions: a local day is walked time by time, and what the clock does is looked up.

It shares nothing with the product: an expression is written together with what it means (S8.1), and the zone's own
conversions say when a wall clock shows a time (S8.4).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
LONGEST_WAIT_DAYS = 9 * 366


class Field(NamedTuple):
    """One field: its text, the values it takes, and whether it restricts nothing or is a star for DST."""

    text: str
    values: frozenset[int]
    bare: bool = False
    star: bool = False


def star(low: int, high: int, step: int = 1, mark: str = "*") -> Field:
    text = mark if step == 1 else f"{mark}/{step}"
    return Field(text, frozenset(range(low, high + 1, step)), step == 1, star=True)


def some(*values: int) -> Field:
    return Field(",".join(map(str, values)), frozenset(values))


class Cron(NamedTuple):
    """An expression as minute, hour, day, month and weekday (0 is Sunday)."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def expr(self) -> str:
        return " ".join(field.text for field in self)

    @property
    def elapsed(self) -> bool:
        """S8.4: with a star in hour or minute it runs whenever the clock really shows a match."""
        return self.minute.star or self.hour.star

    def has_day(self, day: date) -> bool:
        if day.month not in self.month.values:
            return False
        by_day = day.day in self.day.values
        by_weekday = day.isoweekday() % 7 in self.weekday.values
        if self.day.bare or self.weekday.bare:
            return by_day and by_weekday
        return by_day or by_weekday


class Reading:
    """When an expression fires in a zone. Days once walked are kept."""

    def __init__(self, cron: Cron, zone: str) -> None:
        self.cron = cron
        self._info = zone_info(zone)
        self._days: dict[date, tuple[datetime, ...]] = {}
        self._last: tuple[datetime, datetime | None] | None = None

    def first_after(self, after: datetime) -> datetime | None:
        """The first occurrence later than that; None if there is none for nine years."""
        if self._last is not None:
            asked, told = self._last
            if asked <= after and (told is None or after < told):
                return told
        self._last = (after, self._walk_on(after))
        return self._last[1]

    def _walk_on(self, after: datetime) -> datetime | None:
        day = after.astimezone(self._info).date() - DAY
        for _ in range(LONGEST_WAIT_DAYS):
            found = [t for t in self._on(day) if t > after]
            if found:
                # A clock change at midnight may put a time of the next day before one of this day.
                return min(found + [t for t in self._on(day + DAY) if t > after])
            day += DAY
        return None

    def newest_in(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The occurrences in (after, until], oldest first; of more than `limit` only the newest, and some more."""
        found: set[datetime] = set()
        first, last = (t.astimezone(self._info).date() for t in (after, until))
        day = last + DAY
        while day >= first - DAY and len(found) <= limit:
            whole = first + DAY < day < last - DAY
            found.update(self._on(day) if whole else (t for t in self._on(day) if after < t <= until))
            day -= DAY
        return sorted(found)

    def _on(self, day: date) -> tuple[datetime, ...]:
        known = self._days.get(day)
        if known is None:
            known = self._days[day] = self._walk(day) if self.cron.has_day(day) else ()
        return known

    def _walk(self, day: date) -> tuple[datetime, ...]:
        midnight = datetime.combine(day, time())
        locals_ = [
            midnight + timedelta(hours=hour, minutes=minute)
            for hour in self.cron.hour.values
            for minute in self.cron.minute.values
        ]
        offset = offset_of(midnight, self._info)
        if all(offset_of(midnight + timedelta(days=n), self._info) == offset for n in (-1, 1, 2)):
            return tuple(sorted((local - offset).replace(tzinfo=UTC) for local in locals_))
        found: set[datetime] = set()
        for local in locals_:
            found.update(self._instants(local))
        return tuple(sorted(found))

    def _instants(self, local: datetime) -> list[datetime]:
        """When the clock shows this time; where it never does, a fixed time comes when it has passed it."""
        passes = [local.replace(tzinfo=self._info, fold=fold).astimezone(UTC) for fold in (0, 1)]
        shown = [t for t in passes if t.astimezone(self._info).replace(tzinfo=None) == local]
        if self.cron.elapsed:
            return shown
        return [min(shown)] if shown else [self._end_of_gap(min(passes))]

    def _end_of_gap(self, before: datetime) -> datetime:
        offset = before.astimezone(self._info).utcoffset()
        t = before.replace(second=0)
        while t.astimezone(self._info).utcoffset() == offset:
            t += MINUTE
        return t


def clock_changes(zone: str, start: datetime, until: datetime) -> list[datetime]:
    """The hours in which a zone changes its clock."""
    info = zone_info(zone)
    hours = int((until - start) / timedelta(hours=1))
    instants = [start + timedelta(hours=n) for n in range(hours + 1)]
    return [
        after
        for before, after in pairwise(instants)
        if before.astimezone(info).utcoffset() != after.astimezone(info).utcoffset()
    ]


@lru_cache(maxsize=64)
def zone_info(key: str) -> ZoneInfo:
    data = files("tzdata").joinpath("zoneinfo", *key.split("/")).read_bytes()
    return ZoneInfo.from_file(BytesIO(data), key=key)


def offset_of(local: datetime, info: ZoneInfo) -> timedelta:
    offset = local.replace(tzinfo=info).utcoffset()
    assert offset is not None
    return offset
