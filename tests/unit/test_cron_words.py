"""Schedules in plain words: exact about days, times, the zone and the next clock change (S8.3, S8.4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.clock_changes import Change, zones_by_changes
from tests.support.cron_specs import Spec, instants, specs, zones

from autopilot.domain.cron import CronSchedule, Zone, occurrences, parse, zone
from autopilot.domain.cron_words import describe

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MONTH_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

TABLE = [
    ("* * * * *", "every minute in NY"),
    ("*/5 * * * *", "every 5 minutes in NY"),
    ("*/15 * * * *", "every 15 minutes in NY"),
    ("*/7 * * * *", "at minutes 0 to 56 in steps of 7 of every hour in NY"),
    ("5/15 * * * *", "every 15 minutes from 00:05 to 23:50 in NY"),
    ("0 * * * *", "every hour at minute 0 in NY"),
    ("30 * * * *", "every hour at minute 30 in NY"),
    ("0,30 * * * *", "every 30 minutes in NY"),
    ("1,2,17 * * * *", "at minutes 1, 2 and 17 of every hour in NY"),
    ("10-20 * * * *", "at minutes 10 to 20 of every hour in NY"),
    ("30 2 * * *", "every day at 02:30 NY; on 14 March 2027 at 03:00"),
    ("0 2 * * *", "every day at 02:00 NY; on 14 March 2027 at 03:00"),
    ("0,30 2 * * *", "every day at 02:00 and 02:30 NY; on 14 March 2027 at 03:00 instead of 02:00 and 02:30"),
    ("0 2,3 * * *", "every day at 02:00 and 03:00 NY; on 14 March 2027 not at 02:00"),
    (
        "0-58 2 * * *",
        "at minutes 0 to 58 of hour 2 in NY; on 14 March 2027 at 03:00 instead of the 59 times from 02:00 to 02:58",
    ),
    ("30 1 * * *", "every day at 01:30 NY; on 7 November 2027 once, at the first 01:30"),
    ("30 1,2,5 * * *", "every day at 01:30, 02:30 and 05:30 NY; on 14 March 2027 at 03:00 instead of 02:30"),
    ("*/30 1 * * *", "every day at 01:00 and 01:30 NY; on 7 November 2027 twice at 01:00 and 01:30"),
    (
        "*/15 2 * * *",
        "every day at 02:00, 02:15, 02:30 and 02:45 NY; on 14 March 2027 not at 02:00, 02:15, 02:30 or 02:45",
    ),
    ("0 */2 * * *", "every 2 hours from 00:00 to 22:00 in NY; on 14 March 2027 not at 02:00"),
    ("0 */13 * * *", "every day at 00:00 and 13:00 NY"),
    ("0 9-17 * * *", "every hour from 09:00 to 17:00 in NY"),
    ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:45 in NY, every day from Monday to Friday"),
    ("* 9-17 * * *", "every minute from 09:00 to 17:59 in NY"),
    ("* 9,12 * * *", "every minute of hours 9 and 12 in NY"),
    ("*/20 3,5,9 * * *", "at minutes 0, 20 and 40 of hours 3, 5 and 9 in NY"),
    ("0 9 * * 1-5", "every day from Monday to Friday at 09:00 NY"),
    ("0 9 * * 1-1", "every Monday at 09:00 NY"),
    ("0 9 * * 0,6", "every Saturday and Sunday at 09:00 NY"),
    ("0 9 * * 1,3,5", "every Monday, Wednesday and Friday at 09:00 NY"),
    ("0 9 * * 5-7", "every day from Friday to Sunday at 09:00 NY"),
    ("0 9 * * SUN", "every Sunday at 09:00 NY"),
    ("0 0 1-31 * 4", "every day at 00:00 NY"),
    ("0 9 1 * *", "on day 1 of every month at 09:00 NY"),
    ("0 9 1,15 * *", "on days 1 and 15 of every month at 09:00 NY"),
    ("0 9 1-7 * *", "on days 1 to 7 of every month at 09:00 NY"),
    ("0 0 */2 * *", "on days 1 to 31 in steps of 2 of every month at 00:00 NY"),
    ("0 0 */10 * *", "on days 1, 11, 21 and 31 of every month at 00:00 NY"),
    ("0 9 31 * *", "on day 31 of every month that has it at 09:00 NY"),
    ("0 9 29 2 *", "on day 29 of February in leap years at 09:00 NY"),
    ("0 9 29,30 2 *", "on day 29 of February in leap years at 09:00 NY"),
    ("0 9 28,31 * *", "on days 28 and 31 of every month at 09:00 NY"),
    ("0 0 31 2 *", "never runs"),
    ("0 0 31 2,3 *", "on day 31 of March at 00:00 NY"),
    ("0 9 1 1 *", "on day 1 of January at 09:00 NY"),
    ("0 9 14 3 *", "on day 14 of March at 09:00 NY"),
    ("30 2 14 3 *", "on day 14 of March at 02:30 NY; on 14 March 2027 at 03:00"),
    ("0 9 * 6-8 *", "every day in June to August at 09:00 NY"),
    ("0 9 * 3,6,9,12 1", "every Monday in March, June, September and December at 09:00 NY"),
    ("0 16 1,2,3 * FRI", "on days 1 to 3 of every month or any Friday (either is enough) at 16:00 NY"),
    (
        "0 16 */2 * SAT",
        "on days 1 to 31 in steps of 2 of every month or any Saturday (either is enough) at 16:00 NY",
    ),
    ("0 16 13 3 FRI", "on day 13 of March or any Friday in March (either is enough) at 16:00 NY"),
    (
        "0 16 13 2,4 FRI,SAT",
        "on day 13 of February and April or any Friday or Saturday in February and April (either is enough) at 16:00 NY",
    ),
    ("0 0 31 2 MON", "every Monday in February at 00:00 NY"),
    ("0 0,6,12,18 * * *", "every day at 00:00, 06:00, 12:00 and 18:00 NY"),
    (
        "0 1-23/2 * * *",
        "every 2 hours from 01:00 to 23:00 in NY; on 7 November 2027 once, at the first 01:00",
    ),
    ("0,20 9-17 * * *", "at minutes 0 and 20 of hours 9 to 17 in NY"),
    ("15 0-22 * * *", "every hour from 00:15 to 22:15 in NY; on 14 March 2027 at 03:00 instead of 02:15"),
]


@pytest.mark.parametrize(("expr", "words"), TABLE, ids=[f"S8.3 {row[0]}" for row in TABLE])
def test_the_words_of_an_expression(expr: str, words: str) -> None:
    said = describe(parse(expr), zone("America/New_York"), NOW)
    assert said == words.replace(" NY", " America/New_York")


@pytest.mark.parametrize(
    ("expr", "tz", "now", "change"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-11-30", "on 28 March 2027 at 03:00"),
        ("30 2 * * *", "Europe/Berlin", "2027-04-01", "on 31 October 2027 once, at the first 02:30"),
        (
            "0,30 2 * * *",
            "Europe/Berlin",
            "2027-04-01",
            "on 31 October 2027 once each, at the first 02:00 and 02:30",
        ),
        ("*/30 2 * * *", "Europe/Berlin", "2027-04-01", "on 31 October 2027 twice at 02:00 and 02:30"),
        (
            "*/5 2 * * *",
            "Europe/Berlin",
            "2027-04-01",
            "on 31 October 2027 twice at the 12 times from 02:00 to 02:55",
        ),
        ("0 */4,2 * * *", "Europe/Berlin", "2026-11-30", "on 28 March 2027 not at 02:00"),
        ("0 0 * * *", "Africa/Cairo", "2026-11-30", "on 30 April 2027 at 01:00"),
        (
            "30 23 * * *",
            "America/Nuuk",
            "2026-11-30",
            "on 28 March 2027 at 00:00 instead of 23:30 the day before",
        ),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-11-30", "on 4 April 2027 once, at the first 01:45"),
        ("*/20 * * * *", "Australia/Lord_Howe", "2026-11-30", "on 4 April 2027 twice at 01:40"),
        (
            "0 9 * * *",
            "Pacific/Apia",
            "2011-12-01",
            "on 31 December 2011 at 00:00 instead of 09:00 the day before",
        ),
        ("30 2 28 3 *", "Europe/Berlin", "2027-04-01", "on 28 March 2032 at 03:00"),
        ("30 2 * * MON", "Europe/Berlin", "2026-11-30", None),
        ("0 9 * * *", "Europe/Berlin", "2026-11-30", None),
        ("*/15 * * * *", "Europe/Berlin", "2026-11-30", None),
        ("0 * * * *", "Europe/Berlin", "2026-11-30", None),
        ("30 2 * * *", "Asia/Kolkata", "2026-11-30", None),
        ("30 2 * * *", "UTC", "2026-11-30", None),
        ("30 2 31 2 *", "Europe/Berlin", "2026-11-30", None),
    ],
)
def test_the_next_change_that_matters_is_told(expr: str, tz: str, now: str, change: str | None) -> None:
    """S8.4"""
    words = describe(parse(expr), zone(tz), datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert (words.partition("; ")[2] or None) == change


def test_in_every_zone_the_words_tell_what_the_next_change_does() -> None:
    """S8.4: a fixed time in the middle of the next gap or fold."""
    seen = {"gap": 0, "fold": 0, "none": 0}
    for changes, names in zones_by_changes().items():
        change = next((change for change in changes if change.at > NOW), None)
        for name in names:
            seen[check_words(zone(name), change)] += 1
    assert seen["gap"] > 100
    assert seen["fold"] > 0
    assert seen["none"] > 100


def check_words(place: Zone, change: Change | None) -> str:
    if change is None:
        assert ";" not in describe(parse("30 2 * * *"), place, NOW)
        return "none"
    _, middle, _ = change.ends()
    daily = parse(f"{middle.minute} {middle.hour} * * *")
    words = (
        describe(daily, place, NOW)
        .partition("; ")[2]
        .removesuffix(f" instead of {middle:%H:%M} the day before")
    )
    around = timedelta(hours=2)
    (ran,) = occurrences(daily, place, change.at - around, until=change.at + around, limit=5)
    shown = ran.astimezone(place.info)
    day = f"on {shown.day} {shown:%B %Y}"
    if change.after > change.before:
        assert (ran, words) == (change.at, f"{day} at {shown:%H:%M}")
        return "gap"
    assert (shown.fold, words) == (0, f"{day} once, at the first {shown:%H:%M}")
    return "fold"


@settings(max_examples=150, deadline=None)
@given(spec=specs(), name=zones, now=instants)
def test_the_words_are_made_from_the_meaning(spec: Spec, name: str, now: datetime) -> None:
    """S8.3: the same matches in elapsed or fixed time, written in another way, read the same."""
    schedule = parse(spec.expr)
    plain = msgspec.structs.replace(parse(spec.plain()), elapsed=schedule.elapsed)
    words = describe(schedule, zone(name), now)
    assert words == describe(plain, zone(name), now)
    assert (words == "never runs") == schedule.never_fires
    assert name in words or schedule.never_fires


def test_the_ends_of_time_are_no_error() -> None:
    """S8.5: and from 2100 on no clock change is told."""
    daily = parse("30 2 * * *")
    for name in ("UTC", "Europe/Berlin", "Australia/Adelaide"):
        for t in (datetime.min, datetime(2099, 12, 31), datetime(2100, 1, 1), datetime.max):
            words = describe(daily, zone(name), t.replace(tzinfo=UTC))
            assert words.startswith(f"every day at 02:30 {name}")
            assert (";" in words) == (t.year == 2099 and name != "UTC")


def meaning(schedule: CronSchedule) -> object:
    """The times of a day, and the days of each month for each weekday that it can begin on."""
    days = [
        mask & ((2 << length) - 2) if schedule.months >> month & 1 else 0
        for month, length in enumerate(MONTH_LENGTHS)
        for mask in schedule.month_days
    ]
    return None if schedule.never_fires else (schedule.day_minutes, days)


@settings(max_examples=300, deadline=None)
@given(spec=specs(), index=st.integers(0, 4), value=st.integers(0, 59))
def test_another_meaning_has_other_words(spec: Spec, index: int, value: int) -> None:
    """S8.3: a value more or less in one field, and the words show it."""
    fields = list(spec.fields)
    low, high = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)][index]
    changed = fields[index] ^ {low + value % (high - low + 1)}
    if not changed:
        return
    fields[index] = changed
    other = parse(spec._replace(fields=tuple(fields)).plain())
    schedule = parse(spec.plain())
    if describe(schedule, zone("UTC"), NOW) == describe(other, zone("UTC"), NOW):
        assert meaning(schedule) == meaning(other)
