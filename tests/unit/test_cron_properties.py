"""Random expressions, zones and instants against two independent readings of the rules (S8.1, S8.4, S8.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.cron_specs import Spec, instants, specs, zones

from autopilot.domain.cron import newest_until, next_after, occurrences, parse, zone

MINUTE = timedelta(minutes=1)


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
    """S8.1, S8.4, once it is told which times are fixed and whether either day field is enough."""
    found = next_after(parse(spec.expr), zone(name), after)
    assert found == spec.oracle_after(after, zone(name).info)


@settings(max_examples=100, deadline=None)
@given(spec=specs(), after=instants)
def test_cronsim_as_it_is_differs_in_steps_and_in_what_a_star_means_for_days(
    spec: Spec, after: datetime
) -> None:
    """S8.1: N-N/n means N, steps of weekdays end on Saturday, a stepped star counts as restricted, and `?` is a star."""
    try:
        sim = CronSim(spec.expr, after)
    except CronSimError:
        assert "?" in spec.expr or min(spec.fields[2]) > 29
        return
    weekdays = {day % 7 for day in sim.weekdays if isinstance(day, int)}
    read = [sim.minutes, sim.hours, sim.days, sim.months, weekdays]
    texts = spec.expr.split()
    differing = [text for text, theirs, ours in zip(texts, read, spec.fields, strict=True) if theirs != ours]
    if differing:
        assert all("/" in text for text in differing)
    elif sim.day_and == spec.either_day:
        assert "*" in texts[2] + texts[4]
    else:
        assert next_after(parse(spec.expr), zone("UTC"), after) == next(sim, None)


@pytest.mark.parametrize(
    ("expr", "tz", "after", "ours", "theirs"),
    [
        ("0 16 */2 * SAT", "UTC", "2023-05-01T00:00", "2023-05-01T16:00", "2023-05-13T16:00"),
        ("0 0 * * */7", "UTC", "2023-05-01T00:00", "2023-05-07T00:00", "2023-05-07T00:00"),
        ("0 0 * * 1/3", "UTC", "2023-05-05T00:00", "2023-05-08T00:00", "2023-05-07T00:00"),
        ("30 0/1 * * *", "America/New_York", "2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T07:30"),
        ("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:45", "2026-04-04T15:15", "2026-04-04T16:15"),
        ("*/15 0 26 4 *", "Africa/Cairo", "2024-04-25T21:00", "2025-04-25T21:00", "2024-04-25T22:00"),
    ],
    ids=[
        "either day field is enough",
        "steps of weekdays agree on Sunday",
        "steps of weekdays end on Saturday",
        "0/n is a star",
        "a match in a fold of half an hour is not left out",
        "a match in a gap at midnight is not made up",
    ],
)
def test_the_places_where_cronsim_differs(expr: str, tz: str, after: str, ours: str, theirs: str) -> None:
    """S8.1, S8.4"""
    t = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = next_after(parse(expr), zone(tz), t)
    simulated = next(CronSim(expr, t.astimezone(zone(tz).info))).astimezone(UTC)
    assert found is not None
    assert [f"{instant:%Y-%m-%dT%H:%M}" for instant in (found, simulated)] == [ours, theirs]


@settings(max_examples=40, deadline=None)
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
