"""Random cron expressions with their meaning worked out apart from the parser, and cronsim's reading of them (S8.1, S8.4)."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from hypothesis import strategies as st

from autopilot.domain.cron import zone_names

NAMES = {
    3: {month: calendar.month_abbr[month].upper() for month in range(1, 13)},
    4: {day: calendar.day_abbr[(day - 1) % 7].upper() for day in range(7)},
}
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
LONGEST_FOLD = timedelta(hours=4)


class Spec(NamedTuple):
    """An expression with its meaning, worked out here and not by the parser."""

    expr: str
    fields: tuple[frozenset[int], ...]
    either_day: bool
    elapsed: bool

    def matches(self, local: datetime) -> bool:
        minute, hour, day, month, weekday = self.fields
        if local.minute not in minute or local.hour not in hour or local.month not in month:
            return False
        by_day, by_weekday = local.day in day, local.isoweekday() % 7 in weekday
        return by_day or by_weekday if self.either_day else by_day and by_weekday

    def plain(self) -> str:
        """The same meaning in lists, ranges and stars; cronsim takes a star of a day field for 'both must match'."""
        texts = [_plain(values) for values in self.fields]
        for index in (0, 1, 3) if self.either_day else range(5):
            low, high = BOUNDS[index]
            if len(self.fields[index]) == high - low + 1:
                texts[index] = "*"
        return " ".join(texts)

    def oracle_after(self, after: datetime, info: ZoneInfo) -> datetime | None:
        """What cronsim finds after that instant, once told whether the times are fixed."""
        return (elapsed_after if self.elapsed else fixed_after)(self.plain(), after, info)


def _plain(values: frozenset[int]) -> str:
    ends = [
        (v, next(w for w in count(v) if w + 1 not in values)) for v in sorted(values) if v - 1 not in values
    ]
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)


def fixed_after(expr: str, after: datetime, info: ZoneInfo) -> datetime | None:
    """cronsim's own policy for fixed times. It forgets on which side of a fold it starts, so it starts well before."""
    try:
        for found in CronSim(expr, (after - timedelta(days=3)).astimezone(info)):
            if found.astimezone(UTC) > after:
                return found.astimezone(UTC)
    except CronSimError:
        pass
    return None


def elapsed_after(expr: str, after: datetime, info: ZoneInfo) -> datetime | None:
    """The first instant at which the wall clock really shows a time that cronsim finds on the bare calendar.

    With a timezone its own walk leaves matches out, makes some up and may not end, where clocks change at midnight or by
    parts of an hour.
    """
    wall = after.astimezone(info).replace(tzinfo=None)
    found: list[datetime] = []
    try:
        for local in CronSim(expr, wall - LONGEST_FOLD):
            if found and local > wall + LONGEST_FOLD:
                break
            found += [t for t in shown_at(local, info) if t > after]
    except CronSimError:
        pass
    return min(found, default=None)


def shown_at(local: datetime, info: ZoneInfo) -> set[datetime]:
    """The instants at which the wall clock shows that time: none in a gap, two in a fold."""
    passes = {local.replace(tzinfo=info, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return {t for t in passes if t.astimezone(info).replace(tzinfo=None) == local}


@st.composite
def elements(draw: st.DrawFn, index: int) -> tuple[str, frozenset[int], bool, bool]:
    """(text, values, is a bare star, is a star for S8.4)"""
    low, high = BOUNDS[index]
    kind = draw(st.sampled_from(["*", "*/", "v", "v", "v", "v/", "-", "-/"]))
    step = draw(st.integers(1, high - low + 1)) if "/" in kind else 1
    suffix = f"/{step}" if "/" in kind else ""
    if kind[0] == "*":
        star = draw(st.sampled_from("*?"))
        return star + suffix, frozenset(range(low, high + 1, step)), not suffix, True
    start = draw(st.integers(low, high))
    end = draw(st.integers(start, high)) if kind[0] == "-" else start

    def text(value: int) -> str:
        return draw(st.sampled_from([str(value), NAMES[index][value]])) if index in NAMES else str(value)

    if kind[0] == "-":
        whole = (start, end) == (low, high)
        return f"{text(start)}-{text(end)}{suffix}", frozenset(range(start, end + 1, step)), False, whole
    through = range(start, high + 1, step) if suffix else (start,)
    return text(start) + suffix, frozenset(through), False, bool(suffix) and start == low


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    texts, fields, bare, stars = [], [], [], []
    for index, (low, high) in enumerate(BOUNDS):
        drawn = draw(st.lists(elements(index), min_size=1, max_size=3))
        values = frozenset().union(*(e[1] for e in drawn))
        texts.append(",".join(e[0] for e in drawn))
        fields.append(values)
        bare.append(any(e[2] for e in drawn))
        stars.append(any(e[3] for e in drawn) or len(values) == high - low + 1)
    return Spec(" ".join(texts), tuple(fields), not (bare[2] or bare[4]), stars[0] or stars[1])


zones = st.sampled_from(sorted(zone_names()))
instants = st.datetimes(datetime(1973, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
