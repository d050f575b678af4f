"""Which expressions are accepted, what they mean, and what is said of the others (S8.1)."""

from __future__ import annotations

import pytest
from tests.support.processor_time import fastest

from autopilot.domain.cron import InvalidCron, parse
from autopilot.domain.cron_fields import read_fields

REFUSED = [
    ("", "empty"),
    (" \t ", "empty"),
    ("* * * *", "expected five fields"),
    ("* * * * * */5", "seconds and years"),
    ("0 * * * * * 2026", "seconds and years"),
    ("* * * * * * * *", "got 8"),
    ("@daily", "'@daily' is not supported"),
    ("@every 5m", "'@every' is not supported"),
    ("0 0 L * *", "day-of-month: 'L'"),
    ("0 0 LW * *", "day-of-month: 'LW'"),
    ("0 0 15W * *", "day-of-month: 'W'"),
    ("0 9 * * 1#2", "day-of-week: '#'"),
    ("0 9 * * MON#2", "day-of-week: '#'"),
    ("0 9 * * L5", "day-of-week: 'L'"),
    ("0 9 * * 5L", "day-of-week: 'L'"),
    ("R R * * *", "minute: 'R'"),
    ("0 R(1-5) * * *", "hour: 'R'"),
    ("H H * * *", "minute: 'H'"),
    ("0 22-2 * * *", "hour: the range '22-2' ends before it starts"),
    ("0 0 * * 6-1", "day-of-week: the range '6-1'"),
    ("0 0 * * 7-1", "day-of-week: the range '7-1'"),
    ("0 0 * DEC-FEB *", "month: the range 'DEC-FEB'"),
    ("1,,2 * * * *", "minute: '1,,2' has an empty list element"),
    (",1 * * * *", "minute: ',1' has an empty list element"),
    ("1, * * * *", "minute: '1,' has an empty list element"),
    ("*/61 * * * *", "minute: the step in '*/61' is out of range 1-60"),
    ("0 */25 * * *", "hour: the step in '*/25' is out of range 1-24"),
    ("0 0 */32 * *", "day-of-month: the step"),
    ("0 0 * */13 *", "month: the step"),
    ("0 0 * * */8", "day-of-week: the step in '*/8' is out of range 1-7"),
    ("*/0 * * * *", "minute: the step in '*/0' is out of range 1-60"),
    ("*/ * * * *", "minute: the step in '*/' is not a number"),
    ("*/-1 * * * *", "minute: the step"),
    ("*/5/2 * * * *", "minute: the step"),
    ("60 * * * *", "minute: 60 is out of range 0-59"),
    ("-1 * * * *", "minute: '-1' lacks a value"),
    ("1- * * * *", "minute: '1-' lacks a value"),
    ("1-2-3 * * * *", "minute: '2-3' in '1-2-3' is not a number"),
    ("*-5 * * * *", "minute: '*' in '*-5' is not a number"),
    ("+1 * * * *", "minute: '+1' in '+1' is not a number"),
    ("1.5 * * * *", "minute: '1.5'"),
    ("0 24 * * *", "hour: 24 is out of range 0-23"),
    ("0 0 0 * *", "day-of-month: 0 is out of range 1-31"),
    ("0 0 32 * *", "day-of-month: 32 is out of range 1-31"),
    ("0 0 * 0 *", "month: 0 is out of range 1-12"),
    ("0 0 * 13 *", "month: 13 is out of range 1-12"),
    ("0 0 * * 8", "day-of-week: 8 is out of range 0-7"),
    ("0 0 * MARCH *", "month: 'MARCH' in 'MARCH' is not a number or a three-letter name"),
    ("0 0 * * MONDAY", "day-of-week: 'MONDAY'"),
    ("0 0 JAN * *", "day-of-month: 'JAN' in 'JAN' is not a number"),
    ("٠ * * * *", "minute: '٠' has a character that no cron field knows"),
    ("0 0 * * ſun", "day-of-week: 'ſun' has a character"),
    ("0\u00a00 * * * *", "minute: "),
    ("0 0 * * *\n", "day-of-week: "),
    ("0 0 * * \x00", "day-of-week: "),
    ("TZ=UTC 0 9 * * *", "use the timezone field"),
    ("CRON_TZ=UTC 0 9 * * *", "use the timezone field"),
    ("CRON_TZ=UTC", "use the timezone field"),
    ("tz=UTC 0 9 * * *", "use the timezone field"),
    ("0 0 * * " + "1," * 130 + "1", "longer than 256 characters"),
    ("9" * 240 + " * * * *", "minute: "),
]


@pytest.mark.parametrize(("expr", "fault"), REFUSED, ids=[f"S8.1 {row[0]!r:.30}" for row in REFUSED])
def test_what_is_refused_is_refused_with_field_and_fault(expr: str, fault: str) -> None:
    with pytest.raises(InvalidCron) as refused:
        parse(expr)
    assert fault in refused.value.message
    assert (refused.value.field, refused.value.code) == ("cron", "invalid_cron")


def values(expr: str) -> list[set[int]]:
    _, fields = read_fields(expr)
    return [{bit for bit in range(60) if field.mask >> bit & 1} for field in fields]


MEANING = [
    ("5 * * * *", 0, {5}),
    ("05 * * * *", 0, {5}),
    ("1,3,1 * * * *", 0, {1, 3}),
    ("5/20 * * * *", 0, {5, 25, 45}),
    ("59/15 * * * *", 0, {59}),
    ("*/60 * * * *", 0, {0}),
    ("10-20/5 * * * *", 0, {10, 15, 20}),
    ("10-10/5 * * * *", 0, {10}),
    ("?/20 * * * *", 0, {0, 20, 40}),
    ("5,*/30 * * * *", 0, {0, 5, 30}),
    ("0 ? * * *", 1, set(range(24))),
    ("0 0 28/2 * *", 2, {28, 30}),
    ("0 0 1 jan-Mar,DEC *", 3, {1, 2, 3, 12}),
    ("0 0 1 OCT/1 *", 3, {10, 11, 12}),
    ("0 0 * * 7", 4, {0}),
    ("0 0 * * 7-7", 4, {0}),
    ("0 0 * * 5-7", 4, {0, 5, 6}),
    ("0 0 * * 0-7", 4, set(range(7))),
    ("0 0 * * fri-SUN", 4, {0, 5, 6}),
    ("0 0 * * SUN-SUN", 4, {0}),
    ("0 0 * * SUN-TUE", 4, {0, 1, 2}),
    ("0 0 * * 0-SUN", 4, {0}),
    ("0 0 * * */2", 4, {0, 2, 4, 6}),
    ("0 0 * * 7/2", 4, {0, 2, 4, 6}),
    ("0 0 * * 3/2", 4, {3, 5}),
    ("0 0 * * 1-7/2", 4, {0, 1, 3, 5}),
    ("0 0 * * */7", 4, {0}),
    ("0 0 * * 1-1", 4, {1}),
]


@pytest.mark.parametrize(("expr", "index", "expected"), MEANING, ids=[f"S8.1 {row[0]}" for row in MEANING])
def test_what_is_accepted_means_this(expr: str, index: int, expected: set[int]) -> None:
    assert values(expr)[index] == expected


@pytest.mark.parametrize("expr", ["0 0 */2 * 1", "0 0 1-31 * 1", "0 0 1 * 0-6", "0 0 */1 * 1", "0 0 1 * */2"])
def test_a_stepped_star_and_a_whole_range_restrict_the_day(expr: str) -> None:
    """S8.1: when both day fields are restricted, either matches."""
    _, (_, _, day, _, weekday) = read_fields(expr)
    assert not day.unrestricted
    assert not weekday.unrestricted


@pytest.mark.parametrize("expr", ["0 0 * * 1", "0 0 ? * 1", "0 0 1,* * 1"])
def test_a_bare_star_leaves_the_other_day_field_to_decide(expr: str) -> None:
    """S8.1"""
    _, (_, _, day, _, weekday) = read_fields(expr)
    assert day.unrestricted
    assert not weekday.unrestricted


def test_the_text_is_kept_with_single_blanks() -> None:
    assert parse("  0\t9  * * mon-FRI ").expr == "0 9 * * mon-FRI"


def test_schedules_are_values() -> None:
    assert parse("0 9 * * *") is parse("0 9 * * *")
    assert hash(parse("0 9 * * 1")) == hash(parse("0  9 * * 1"))
    assert parse("0 9 * * 1") == parse("0  9 * * 1")


@pytest.mark.parametrize("expr", ["*" * 100_000, "1-" * 120, "/" * 200, "0 0 1 1 " + "#" * 200, "1," * 128])
def test_a_hostile_expression_is_refused_at_once_and_in_few_words(expr: str) -> None:
    """S8.5"""

    def refuse() -> None:
        with pytest.raises(InvalidCron) as refused:
            parse(expr)
        assert len(refused.value.message) < 600

    assert fastest(refuse) < 0.1


def test_the_longest_list_is_read_at_once() -> None:
    """S8.5"""
    assert fastest(lambda: parse(",".join(["*/1"] * 62) + " * * * *")) < 0.1
