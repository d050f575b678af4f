"""Which plans of a scope are run, decided purely (S7.6, HAZARDS 24)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from autopilot.scheduler import cadence
from autopilot.storage.executions import Span

HOUR = timedelta(hours=1)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def span(oldest: datetime | None = None, newest: datetime | None = None) -> Span:
    return Span(now=NOON, oldest=oldest, newest=newest)


def hours(*ago: int) -> list[datetime]:
    return [NOON - n * HOUR for n in ago]


@given(
    st.integers(1, 10**6).map(lambda s: timedelta(seconds=s)),
    st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2100, 1, 1)).map(
        lambda t: t.replace(tzinfo=UTC)
    ),
)
def test_the_newest_plan_of_a_cadence_is_the_last_of_all_its_plans(every: timedelta, until: datetime) -> None:
    newest = cadence.newest_on(every, until)
    assert until - every < newest <= until
    assert cadence.all_on(every, until - 3 * every, until)[-1] == newest
    assert len(cadence.all_on(every, until - 3 * every, until)) == 3


def test_plans_lie_after_since_and_up_to_until() -> None:
    assert cadence.all_on(HOUR, NOON - 2 * HOUR, NOON) == hours(1, 0)
    assert cadence.all_on(HOUR, NOON, NOON) == []


def test_latest_only_takes_the_newest_and_only_once() -> None:
    """S7.6"""
    assert cadence.latest_only(hours(2, 0, 1), span()) == [NOON]
    assert cadence.latest_only(hours(2, 1, 0), span(newest=NOON - HOUR)) == [NOON]
    assert cadence.latest_only(hours(2, 1, 0), span(newest=NOON)) == []
    assert cadence.latest_only([], span()) == []


def test_every_plan_fills_holes_oldest_first_up_to_its_limit() -> None:
    """S7.6, HAZARDS 24: a newer plan that is done jumps over nothing."""
    known = hours(5, 2)
    due = hours(5, 4, 3, 2, 1, 0)
    whole = span(oldest=NOON - 5 * HOUR, newest=NOON - 2 * HOUR)
    assert cadence.every_plan(due, whole, known, limit=3) == hours(4, 3, 1)
    assert cadence.every_plan(due, whole, known, limit=9) == hours(4, 3, 1, 0)


def test_every_plan_of_a_new_scope_begins_with_the_newest() -> None:
    assert cadence.every_plan(hours(2, 1, 0), span(), [], limit=9) == [NOON]
    assert cadence.every_plan(hours(3, 2, 1, 0), span(oldest=NOON - HOUR), hours(1), limit=9) == [NOON]
