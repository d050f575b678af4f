"""Random expressions, zones and instants against two independent readings of the rules (S8.1, S8.4, S8.5)."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopilot.domain.cron import newest_until, next_after, occurrences, parse, zone, zone_names

MINUTE = timedelta(minutes=1)
NAMES = {
    3: {month: calendar.month_abbr[month].upper() for month in range(1, 13)},
    4: {day: calendar.day_abbr[(day - 1) % 7].upper() for day in range(7)},
}
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


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

    def oracle(self, after: datetime, info: ZoneInfo) -> CronSim:
        bare = ["*" if len(f) == b[1] - b[0] + 1 else None for f, b in zip(self.fields, BOUNDS, strict=True)]
        texts = [",".join(map(str, sorted(field))) for field in self.fields]
        if not self.either_day:
            texts[2:] = [star or text for star, text in zip(bare[2:], texts[2:], strict=True)]
        sim = CronSim(" ".join(texts), after.astimezone(info))
        if self.elapsed:
            sim.fixup_tz = None
            sim.dt = after.replace(second=0, microsecond=0).astimezone(info)
        return sim


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


@st.composite
def instants_near_a_change(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone and an instant up to a day and a half before one of its clock changes."""
    name, year = draw(zones), draw(st.integers(1973, 2060))
    info = zone(name).info
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(366)]
    changes = [
        d
        for d in days
        if d.astimezone(info).utcoffset() != (d + timedelta(days=1)).astimezone(info).utcoffset()
    ]
    assume(changes)
    return name, draw(st.sampled_from(changes)) + timedelta(minutes=draw(st.integers(-720, 1440)))


def expected_from_cronsim(spec: Spec, info: ZoneInfo, after: datetime) -> datetime | None:
    # On fixed times cronsim forgets on which side of a fold it starts, so it is started well before.
    start = after if spec.elapsed else after - timedelta(days=3)
    try:
        for found in spec.oracle(start, info):
            if found.astimezone(UTC) > after:
                return found.astimezone(UTC)
    except CronSimError:
        pass
    return None


def expected_by_walking(spec: Spec, info: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    """Watch the wall clock minute by minute; a fixed time runs when the clock first shows it or has passed it."""
    found: list[datetime] = []
    t = after.replace(second=0, microsecond=0) - timedelta(days=2)
    furthest = t.astimezone(info).replace(tzinfo=None)
    while t < until:
        t += MINUTE
        local = t.astimezone(info).replace(tzinfo=None)
        if spec.elapsed:
            due = spec.matches(local)
        else:
            passed = range(int((local - furthest) / MINUTE))
            due = any(spec.matches(local - n * MINUTE) for n in passed)
            furthest = max(furthest, local)
        if due and t > after:
            found.append(t)
    return found


@settings(max_examples=250, deadline=None)
@given(spec=specs(), name=zones, after=instants)
def test_next_times_agree_with_cronsim(spec: Spec, name: str, after: datetime) -> None:
    """S8.1, S8.4: once told which times are fixed and that either day field matches, it has no other differences."""
    found = next_after(parse(spec.expr), zone(name), after)
    assert found == expected_from_cronsim(spec, zone(name).info, after)


@settings(max_examples=60, deadline=None)
@given(spec=specs(), near=instants_near_a_change())
def test_next_times_near_a_clock_change_agree_with_a_watched_clock(
    spec: Spec, near: tuple[str, datetime]
) -> None:
    """S8.4"""
    name, after = near
    until = after + timedelta(days=2)
    found = occurrences(parse(spec.expr), zone(name), after, until=until, limit=5_000)
    assert found == expected_by_walking(spec, zone(name).info, after, until)


@settings(max_examples=200, deadline=None)
@given(
    spec=specs(),
    name=zones,
    after=st.datetimes(timezones=st.just(UTC)),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_next_is_strictly_later_and_the_same_from_anywhere_before_it(
    spec: Spec, name: str, after: datetime, fraction: float
) -> None:
    """S8.5: for every zone, expression and instant, from year 1 to 9999."""
    schedule, place = parse(spec.expr), zone(name)
    found = next_after(schedule, place, after)
    if found is None:
        assert schedule.never_fires or after.year > 9_980
        return
    assert found > after
    between = after + (found - after) * fraction
    if between < found:
        assert next_after(schedule, place, between) == found


@settings(max_examples=100, deadline=None)
@given(spec=specs(), name=zones, after=instants, stretch=st.timedeltas(timedelta(0), timedelta(days=2)))
def test_the_newest_until_is_the_last_of_the_occurrences(
    spec: Spec, name: str, after: datetime, stretch: timedelta
) -> None:
    """S7.10"""
    schedule, place = parse(spec.expr), zone(name)
    walked = occurrences(schedule, place, after, until=after + stretch, limit=5_000)
    newest = newest_until(schedule, place, known=after, until=after + stretch)
    assert newest == (walked[-1] if walked else after)
