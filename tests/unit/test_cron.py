"""Next occurrences: the known tables, DST, and the bounds of the search (S8.1, S8.4, S8.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.support.processor_time import fastest

from autopilot.domain.cron import newest_until, next_after, occurrences, parse, zone


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def runs(expr: str, tz: str, after: str, limit: int) -> list[datetime]:
    return occurrences(parse(expr), zone(tz), at(after), limit=limit)


TABLE = [
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00", "2026-03-08T07:00 2026-03-09T06:30"),
    ("0 2 * * *", "America/Los_Angeles", "2025-03-08T12:00", "2025-03-09T10:00 2025-03-10T09:00"),
    (
        "30 1 * * *",
        "America/New_York",
        "2026-10-31T12:00",
        "2026-11-01T05:30 2026-11-02T06:30 2026-11-03T06:30",
    ),
    (
        "0 * * * *",
        "America/New_York",
        "2026-03-08T05:30",
        "2026-03-08T06:00 2026-03-08T07:00 2026-03-08T08:00 2026-03-08T09:00",
    ),
    (
        "0 * * * *",
        "America/New_York",
        "2026-11-01T04:30",
        "2026-11-01T05:00 2026-11-01T06:00 2026-11-01T07:00 2026-11-01T08:00",
    ),
    (
        "0 */2 * * *",
        "Europe/Berlin",
        "2024-10-26T23:00",
        "2024-10-27T00:00 2024-10-27T01:00 2024-10-27T03:00 2024-10-27T05:00",
    ),
    ("0 0 1 * *", "Europe/Berlin", "2024-02-22T23:00", "2024-02-29T23:00 2024-03-31T22:00 2024-04-30T22:00"),
    (
        "0 8 * * 1",
        "Europe/Amsterdam",
        "2017-10-22T00:00",
        "2017-10-23T06:00 2017-10-30T07:00 2017-11-06T07:00",
    ),
    ("0 20 * * *", "Europe/Paris", "2022-10-29T22:00", "2022-10-30T19:00 2022-10-31T19:00 2022-11-01T19:00"),
    (
        "0 0 * * *",
        "America/Santiago",
        "2021-09-03T12:00",
        "2021-09-04T04:00 2021-09-05T04:00 2021-09-06T03:00",
    ),
    (
        "*/20 * * * *",
        "Australia/Lord_Howe",
        "2026-04-04T14:25",
        "2026-04-04T14:40 2026-04-04T15:10 2026-04-04T15:30 2026-04-04T15:50",
    ),
    ("0 9 * * 1-1", "UTC", "2026-06-01T00:00", "2026-06-01T09:00 2026-06-08T09:00 2026-06-15T09:00"),
    ("59-59 * * * *", "UTC", "2026-06-01T00:00", "2026-06-01T00:59 2026-06-01T01:59"),
    ("0 9 29 2 *", "UTC", "2026-01-01T00:00", "2028-02-29T09:00 2032-02-29T09:00"),
    ("0 9 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T09:00"),
    ("0 0 29 * *", "UTC", "2024-02-01T00:00", "2024-02-29T00:00 2024-03-29T00:00 2024-04-29T00:00"),
    (
        "0 0 */10 * *",
        "UTC",
        "2021-01-31T00:00",
        "2021-01-31T00:00 2021-02-01T00:00 2021-02-11T00:00 2021-02-21T00:00 2021-03-01T00:00",
    ),
    (
        "0 16 */2 * SAT",
        "UTC",
        "2023-05-01T00:00",
        "2023-05-01T16:00 2023-05-03T16:00 2023-05-05T16:00 2023-05-06T16:00 2023-05-07T16:00",
    ),
    ("0 0 1-31 * 4", "UTC", "2024-12-01T00:00", "2024-12-02T00:00 2024-12-03T00:00 2024-12-04T00:00"),
    ("0 0 * * 4", "UTC", "2024-12-01T00:00", "2024-12-05T00:00 2024-12-12T00:00"),
    (
        "0 16 1,2,3 * FRI",
        "UTC",
        "2023-05-01T00:00",
        "2023-05-01T16:00 2023-05-02T16:00 2023-05-03T16:00 2023-05-05T16:00 2023-05-12T16:00",
    ),
    ("10 17 * * 1-5", "Asia/Shanghai", "2026-06-22T04:13", "2026-06-22T09:10 2026-06-23T09:10"),
    ("0 9 * * *", "America/Toronto", "2026-03-07T12:00", "2026-03-07T14:00 2026-03-08T13:00"),
]


@pytest.mark.parametrize(
    ("expr", "tz", "after", "expected"), TABLE, ids=[f"S8.1 {r[0]} {r[1]}" for r in TABLE]
)
def test_the_known_next_times(expr: str, tz: str, after: str, expected: str) -> None:
    wanted = [at(text) for text in expected.split() if text != after]
    assert runs(expr, tz, after, len(wanted)) == wanted


DST = [
    ("all fixed times in one gap give one run", "0,15,30,45 2 * * *", "2026-03-08T07:00 2026-03-09T06:00"),
    ("a time at the end of the gap is the same run", "30 2,3 * * *", "2026-03-08T07:00 2026-03-08T07:30"),
    ("the end of the gap does not run twice", "0 2,3 * * *", "2026-03-08T07:00 2026-03-09T06:00"),
    ("no star match is invented in the gap", "*/15 2 * * *", "2026-03-09T06:00 2026-03-09T06:15"),
    ("0/n is a star", "0/15 2 * * *", "2026-03-09T06:00 2026-03-09T06:15"),
    ("a question mark is a star", "? 2 * * *", "2026-03-09T06:00 2026-03-09T06:01"),
    ("the whole range is a star", "0-59 2 * * *", "2026-03-09T06:00 2026-03-09T06:01"),
    ("a step from another start is fixed", "5/15 2 * * *", "2026-03-08T07:00 2026-03-09T06:05"),
]


@pytest.mark.parametrize(("expr", "expected"), [r[1:] for r in DST], ids=[f"S8.4 {r[0]}" for r in DST])
def test_the_spring_gap(expr: str, expected: str) -> None:
    wanted = [at(text) for text in expected.split()]
    assert runs(expr, "America/New_York", "2026-03-08T06:59", len(wanted)) == wanted


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("0,30 1 * * *", "2026-11-01T05:00 2026-11-01T05:30 2026-11-02T06:00"),
        (
            "*/30 1 * * *",
            "2026-11-01T05:00 2026-11-01T05:30 2026-11-01T06:00 2026-11-01T06:30 2026-11-02T06:00",
        ),
        ("30 * * * *", "2026-11-01T04:30 2026-11-01T05:30 2026-11-01T06:30 2026-11-01T07:30"),
        ("30 0-23 * * *", "2026-11-01T04:30 2026-11-01T05:30 2026-11-01T06:30 2026-11-01T07:30"),
        ("30 0-22 * * *", "2026-11-01T04:30 2026-11-01T05:30 2026-11-01T07:30"),
        ("0 2 * * *", "2026-11-01T07:00 2026-11-02T07:00"),
    ],
)
def test_the_autumn_fold(expr: str, expected: str) -> None:
    """S8.4: fixed times run once, at the first pass; stars run on both sides."""
    wanted = [at(text) for text in expected.split()]
    assert runs(expr, "America/New_York", "2026-11-01T04:15", len(wanted)) == wanted


@pytest.mark.parametrize(
    ("expr", "tz", "fold", "following"),
    [
        ("30 1 * * *", "America/New_York", "2026-11-01T06:00", "2026-11-02T06:30"),
        ("0,59 1 * * *", "America/New_York", "2026-11-01T06:00", "2026-11-02T06:00"),
        ("0 2 * * *", "America/New_York", "2026-11-01T06:00", "2026-11-01T07:00"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T15:00", "2026-04-05T15:15"),
        ("30 2 * * *", "Australia/Sydney", "2008-04-05T16:00", "2008-04-06T16:30"),
        ("30 2 * * *", "Europe/Berlin", "2080-10-27T01:00", "2080-10-28T01:30"),
    ],
)
def test_a_fixed_time_is_over_when_asked_inside_the_second_pass(
    expr: str, tz: str, fold: str, following: str
) -> None:
    """S8.4, S8.5: listed changes, the last listed one, and one by rule."""
    for minute in range(30):
        t = at(fold) + timedelta(minutes=minute)
        assert occurrences(parse(expr), zone(tz), t, limit=1) == [at(following)]


def test_a_day_that_a_zone_skipped_gives_one_run() -> None:
    """S8.4: Samoa had no 30 December 2011."""
    wanted = [at("2011-12-29T19:00"), at("2011-12-30T10:00"), at("2011-12-30T19:00")]
    assert runs("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00", 3) == wanted


def test_a_date_that_never_comes_is_never() -> None:
    """S8.5: found out at once."""
    for expr in ("0 0 31 2 *", "* * 30 2 *", "0 0 31 4,6,9,11 *", "*/5 * 30,31 2 ?"):
        assert parse(expr).never_fires
        assert next_after(parse(expr), zone("UTC"), at("2026-01-01T00:00")) is None
        assert runs(expr, "Europe/Berlin", "2026-01-01T00:00", 3) == []
    assert not parse("0 0 31 2 1").never_fires


def test_the_next_time_is_strictly_later_than_an_occurrence_and_any_part_of_its_second() -> None:
    """S8.5"""
    nine, daily, utc = at("2026-06-01T09:00"), parse("0 9 * * *"), zone("UTC")
    assert next_after(daily, utc, nine - timedelta(microseconds=1)) == nine
    assert next_after(daily, utc, nine) == nine + timedelta(days=1)
    assert next_after(daily, utc, nine + timedelta(microseconds=1)) == nine + timedelta(days=1)


def test_the_instant_may_be_given_in_any_zone_and_the_answer_is_utc() -> None:
    t = datetime(2026, 6, 1, 10, 30, tzinfo=timezone(timedelta(hours=2)))
    found = next_after(parse("0 9 * * *"), zone("UTC"), t)
    assert found == at("2026-06-01T09:00")
    assert found is not None
    assert found.tzinfo is UTC


def test_the_ends_of_time_are_no_error() -> None:
    """S8.5"""
    for expr in ("* * * * *", "0 9 * * *", "0 9 29 2 *"):
        for name in ("UTC", "Pacific/Kiritimati", "America/Adak", "Europe/Berlin"):
            first = next_after(parse(expr), zone(name), datetime.min.replace(tzinfo=UTC))
            assert first is not None
            assert next_after(parse(expr), zone(name), datetime.max.replace(tzinfo=UTC)) is None
    assert next_after(parse("0 9 1 1 *"), zone("UTC"), at("9999-06-01T00:00")) is None


def test_the_far_future_keeps_the_calendar_and_the_rule_of_the_zone() -> None:
    """S8.5: 9 o'clock in Berlin, in summer and winter, after the last explicit transition of any zone."""
    assert runs("0 9 29 2 *", "Europe/Berlin", "2600-01-01T00:00", 1) == [at("2604-02-29T08:00")]
    assert runs("0 9 1 7 *", "Europe/Berlin", "9000-01-01T00:00", 1) == [at("9000-07-01T07:00")]


def test_a_local_mean_time_with_seconds_is_mapped_exactly() -> None:
    assert runs("0 9 * * *", "Europe/Berlin", "1890-01-01T00:00", 1) == [at("1890-01-01T08:06:32")]


def test_occurrences_end_at_until_and_at_the_limit() -> None:
    hourly, utc, after = parse("0 * * * *"), zone("UTC"), at("2026-06-01T00:00")
    assert occurrences(hourly, utc, after, until=at("2026-06-01T02:00"), limit=10) == [
        at("2026-06-01T01:00"),
        at("2026-06-01T02:00"),
    ]
    assert len(occurrences(hourly, utc, after, limit=7)) == 7
    assert occurrences(hourly, utc, after, limit=0) == []


@pytest.mark.parametrize(
    ("expr", "known", "until", "expected"),
    [
        ("*/5 * * * *", "1990-01-01T00:00", "2026-06-01T12:03", "2026-06-01T12:00"),
        ("*/5 * * * *", "2026-06-01T11:55", "2026-06-01T12:00", "2026-06-01T12:00"),
        ("0 9 1 1 *", "2026-01-01T09:00", "2026-12-31T00:00", "2026-01-01T09:00"),
        ("0 9 29 2 *", "1996-02-29T09:00", "2103-12-31T00:00", "2096-02-29T09:00"),
    ],
)
def test_the_newest_occurrence_is_found_without_a_walk(
    expr: str, known: str, until: str, expected: str
) -> None:
    """S7.10: the cost does not grow with the number of occurrences passed over."""

    def newest() -> datetime:
        return newest_until(parse(expr), zone("Europe/London"), known=at(known), until=at(until))

    assert newest() == at(expected)
    assert fastest(newest) < 0.1
