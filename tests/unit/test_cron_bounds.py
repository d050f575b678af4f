"""Hostile expressions are read and searched in bounded time (S8.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from tests.support.processor_time import fastest

from autopilot.domain.cron import InvalidCron, newest_until, next_after, occurrences, parse, zone
from autopilot.domain.cron_fields import MAX_LENGTH, read_fields

START = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST_LIST = ",".join(map(str, range(60)))
HOSTILE = {
    "never, with large steps": "*/59 23 31 4,6,9,11 *",
    "never, 30 February": "59 23 30 2 *",
    "never, all times": "* * 30,31 2 ?",
    "29 February alone": "0 0 29 2 *",
    "29 February or no other day": "59 23 29 FEB ?",
    "a longest list of minutes": f"{LONGEST_LIST} 23 29 2 *",
    "the same minute over and over": ",".join(["0"] * 124) + " 0 1 1 *",
    "stars over and over": ",".join(["*/59"] * 48) + " * 29 2 *",
    "names over and over": "0 0 29 " + ",".join(["FEB"] * 60) + " *",
    "weekdays over and over": "0 0 29 2 " + ",".join(["SUN-SAT/7"] * 24),
    "one minute a year": "59 23 31 12 *",
    "a large step": f"0/{60} 0/{24} 1/{31} 1/{12} *",
}


@pytest.mark.parametrize("expr", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_expression_is_read_and_searched_in_bounded_time(expr: str) -> None:
    """S8.5: milliseconds to read, much less to search, wherever the search begins."""
    assert len(expr) <= MAX_LENGTH
    assert fastest(lambda: read_fields(expr)) < 0.02
    schedule = parse(expr)
    for name in ("UTC", "America/New_York", "Australia/Lord_Howe"):
        place = zone(name)
        for year in (1, 1896, 2026, 2096, 2196, 9990):
            t = datetime(year, 3, 1, tzinfo=UTC)
            assert fastest(lambda t=t, place=place: next_after(schedule, place, t)) < 0.002  # type: ignore[misc]
        many = fastest(lambda place=place: occurrences(schedule, place, START, limit=50))  # type: ignore[misc]
        assert many < 0.02
        back = fastest(
            lambda place=place: newest_until(
                schedule, place, known=START, until=START + timedelta(days=36_500)
            )  # type: ignore[misc]
        )
        assert back < 0.02


@pytest.mark.parametrize("expr", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_expression_goes_forward_only(expr: str) -> None:
    """S8.5: each occurrence is later than the one before, in a zone with odd changes too."""
    found = [START, *occurrences(parse(expr), zone("Australia/Lord_Howe"), START, limit=200)]
    assert all(earlier < later for earlier, later in pairwise(found))
    assert len(found) == (1 if parse(expr).never_fires else 201)


@pytest.mark.parametrize(
    "expr",
    [
        "1" * (MAX_LENGTH + 1),
        "1," * 100_000 + "1 * * * *",
        " " * 1_000_000,
        "9" * 246 + " * * * *",
        "0-" * 120 + " * * * *",
        "*/" + "9" * 240 + " * * * *",
        "," * 248 + " * * * *",
    ],
)
def test_what_is_too_long_or_too_large_is_refused_at_once(expr: str) -> None:
    """S8.1"""

    def refuse() -> None:
        with pytest.raises(InvalidCron):
            read_fields(expr)

    assert fastest(refuse) < 0.02
