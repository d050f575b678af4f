"""What a due trigger runs and what it has missed (S7.10, S7.11)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.domain import cron
from autopilot.domain import schedule as schedules
from autopilot.domain.cron import next_after, occurrences, parse, zone
from autopilot.domain.errors import InvalidValue
from autopilot.domain.schedule import (
    MAX_LATENESS_S,
    CatchUp,
    DueDecision,
    Planned,
    check_catch_up,
    decide_due,
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def decide(
    expr: str,
    first_due: str,
    now: str | datetime,
    catch_up: CatchUp = CatchUp.LATEST,
    tz: str = "UTC",
    lateness_s: int | None = None,
    window_s: int = 86_400,
    keep: int = 100,
    max_plans: int = 5,
) -> DueDecision:
    return decide_due(
        parse(expr),
        zone(tz),
        first_due=at(first_due),
        now=at(now) if isinstance(now, str) else now,
        catch_up=catch_up,
        lateness_s=lateness_s,
        window_s=window_s,
        keep=keep,
        max_plans=max_plans,
    )


def missed(planned_at: str, count: int) -> Planned:
    return Planned(planned_at=at(planned_at), missed_reason="schedule_missed", missed_count=count)


def test_an_occurrence_on_time_runs_and_the_next_follows() -> None:
    """S7.10"""
    assert decide("0 9 * * *", "2026-06-01T09:00", "2026-06-01T09:00:01") == DueDecision(
        plans=(Planned(planned_at=at("2026-06-01T09:00")),), next_run_at=at("2026-06-02T09:00")
    )


@pytest.mark.parametrize(
    ("catch_up", "late_s", "runs"),
    [
        (CatchUp.LATEST, 299, True),
        (CatchUp.LATEST, 300, True),
        (CatchUp.LATEST, 301, False),
        (CatchUp.NONE, 60, True),
        (CatchUp.NONE, 61, False),
        (CatchUp.ALL, 86_400, True),
        (CatchUp.ALL, 86_401, False),
    ],
    ids=lambda value: f"S7.11 {value}",
)
def test_how_late_an_occurrence_may_run(catch_up: CatchUp, late_s: int, runs: bool) -> None:
    now = at("2026-06-01T09:00") + timedelta(seconds=late_s)
    decision = decide("0 9 1 * *", "2026-06-01T09:00", now, catch_up)
    plan = Planned(planned_at=at("2026-06-01T09:00")) if runs else missed("2026-06-01T09:00", 1)
    assert decision == DueDecision(plans=(plan,), next_run_at=at("2026-07-01T09:00"))


def test_the_lateness_limit_can_be_set() -> None:
    """S7.11"""
    late = at("2026-06-01T09:00") + timedelta(days=31)
    assert decide(
        "0 9 1 * *", "2026-06-01T09:00", late - timedelta(days=10), lateness_s=MAX_LATENESS_S
    ).plans == (Planned(planned_at=at("2026-06-01T09:00")),)
    assert decide("0 9 1 1 *", "2026-01-01T09:00", "2026-01-01T09:00:11", lateness_s=10).plans == (
        missed("2026-01-01T09:00", 1),
    )


def test_of_several_due_occurrences_only_the_newest_counts() -> None:
    """S7.10"""
    decision = decide("* * * * *", "2026-06-01T09:00", "2026-06-01T10:00:20")
    assert decision.plans == (Planned(planned_at=at("2026-06-01T10:00"), missed_count=60),)
    assert decision.next_run_at == at("2026-06-01T10:01")


def test_a_newest_occurrence_that_is_too_late_stands_for_all_that_were_missed() -> None:
    """S7.10"""
    decision = decide("0 * * * *", "2026-06-01T09:00", "2026-06-01T14:30")
    assert decision == DueDecision(plans=(missed("2026-06-01T14:00", 6),), next_run_at=at("2026-06-01T15:00"))


def test_yesterdays_occurrence_is_not_fired_after_a_cold_start() -> None:
    """S7.10: due Monday 17:10 in Shanghai, started Tuesday 12:13."""
    decision = decide("10 17 * * 1-5", "2026-06-22T09:10", "2026-06-23T04:13", tz="Asia/Shanghai")
    assert decision == DueDecision(plans=(missed("2026-06-22T09:10", 1),), next_run_at=at("2026-06-23T09:10"))


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_the_cost_and_the_count_are_bounded_however_long_the_pause(catch_up: CatchUp) -> None:
    """S7.10, S7.11: 60 years of minutes."""
    started = time.process_time()
    decision = decide("* * * * *", "1966-01-01T00:00", "2026-06-01T09:00:30", catch_up)
    assert time.process_time() - started < 0.5
    assert decision.plans[0].missed_count == 1_000
    assert decision.plans[-1].missed_reason is None


def test_a_count_just_below_the_stop_is_exact() -> None:
    """S7.11"""
    first = at("2026-06-01T09:00")
    for minutes, count in ((998, 998), (999, 999), (1000, 1000), (1001, 1000)):
        decision = decide("* * * * *", "2026-06-01T09:00", first + timedelta(minutes=minutes))
        assert decision.plans[0].missed_count == count


def test_all_runs_the_oldest_first_a_few_at_a_time() -> None:
    """S7.11, S7.8"""
    first = decide("0 * * * *", "2026-06-01T01:00", "2026-06-01T08:10", CatchUp.ALL)
    assert first == DueDecision(
        plans=tuple(Planned(planned_at=at(f"2026-06-01T0{hour}:00")) for hour in range(1, 6)),
        next_run_at=at("2026-06-01T06:00"),
    )
    second = decide("0 * * * *", "2026-06-01T06:00", "2026-06-01T08:10:01", CatchUp.ALL)
    assert [plan.planned_at.hour for plan in second.plans] == [6, 7, 8]
    assert second.next_run_at == at("2026-06-01T09:00")


def test_all_counts_what_is_older_than_its_window_as_missed() -> None:
    """S7.11"""
    decision = decide("0 */6 * * *", "2026-06-01T00:00", "2026-06-03T12:00", CatchUp.ALL)
    assert decision.plans[0] == missed("2026-06-02T06:00", 6)
    assert [plan.planned_at for plan in decision.plans[1:]] == [
        at("2026-06-02T12:00"),
        at("2026-06-02T18:00"),
        at("2026-06-03T00:00"),
        at("2026-06-03T06:00"),
        at("2026-06-03T12:00"),
    ]
    assert decision.next_run_at == at("2026-06-03T18:00")


def test_all_keeps_the_newest_hundred_of_its_window() -> None:
    """S7.11"""
    decision = decide("* * * * *", "2026-06-01T00:00", "2026-06-01T02:00:30", CatchUp.ALL, max_plans=200)
    assert decision.plans[0] == missed("2026-06-01T00:20", 21)
    assert [plan.planned_at for plan in decision.plans[1:]] == [
        at("2026-06-01T00:20") + timedelta(minutes=n) for n in range(1, 101)
    ]
    assert decision.next_run_at == at("2026-06-01T02:01")


def test_all_with_nothing_left_in_its_window_leaves_one_missed_plan() -> None:
    """S7.11"""
    decision = decide("0 9 * * 1", "2026-06-01T09:00", "2026-06-11T00:00", CatchUp.ALL)
    assert decision == DueDecision(plans=(missed("2026-06-08T09:00", 2),), next_run_at=at("2026-06-15T09:00"))


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_what_is_not_due_yet_is_left_alone(catch_up: CatchUp) -> None:
    assert decide("0 9 * * *", "2026-06-01T09:00", "2026-06-01T08:59:59", catch_up) == DueDecision(
        plans=(), next_run_at=at("2026-06-01T09:00")
    )


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_due_time_that_the_expression_no_longer_gives_still_counts(catch_up: CatchUp) -> None:
    """S7.9: the tzdata may have changed since it was computed."""
    decision = decide("0 9 * * *", "2026-06-01T08:30", "2026-06-01T08:30:05", catch_up)
    assert decision == DueDecision(
        plans=(Planned(planned_at=at("2026-06-01T08:30")),), next_run_at=at("2026-06-01T09:00")
    )


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("back", [timedelta(0), timedelta(hours=1)], ids=["the same", "an earlier one"])
def test_an_occurrence_that_does_not_move_on_is_an_error_and_no_endless_loop(
    monkeypatch: pytest.MonkeyPatch, catch_up: CatchUp, back: timedelta
) -> None:
    """S8.5, CASES CR4: the trigger stops with it, and the process goes on."""

    def broken(_schedule: cron.CronSchedule, _zone: cron.Zone, t: datetime) -> datetime:
        return t - back

    monkeypatch.setattr(schedules, "next_after", broken)
    monkeypatch.setattr(cron, "next_after", broken)
    with pytest.raises(ArithmeticError, match="the next occurrence is given as"):
        decide("0 9 * * *", "2026-06-01T09:00", "2026-06-03T09:00", catch_up)


def test_the_search_for_the_newest_occurrence_ends_also_where_the_next_one_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CASES CR4"""

    def broken(_schedule: cron.CronSchedule, _zone: cron.Zone, t: datetime) -> datetime:
        return t

    known = at("2026-06-01T09:00")
    monkeypatch.setattr(cron, "next_after", broken)
    assert (
        cron.newest_until(parse("0 9 * * *"), zone("UTC"), known=known, until=at("2026-06-03T09:00")) == known
    )


def test_a_schedule_that_never_fires_again_has_no_next_run() -> None:
    assert decide("0 0 31 2 *", "2026-06-01T00:00", "2026-06-01T00:00").next_run_at is None


@settings(max_examples=100, deadline=None)
@given(
    expr=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 * * * *", "0 9 * * 1-5", "30 1,2 * * *", "0 0 1 * *"]
    ),
    tz=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"]),
    start=st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    outage=st.timedeltas(timedelta(0), timedelta(hours=20)),
    catch_up=st.sampled_from(CatchUp),
    keep=st.integers(1, 20),
)
def test_every_due_occurrence_is_run_or_counted_exactly_once(
    expr: str, tz: str, start: datetime, outage: timedelta, catch_up: CatchUp, keep: int
) -> None:
    """S2.3: nothing that should have run ends in silence."""
    schedule, place = parse(expr), zone(tz)
    first = next_after(schedule, place, start)
    assert first is not None
    now = first + outage
    due = [first, *occurrences(schedule, place, first, until=now, limit=5_000)]
    decision = decide_due(
        schedule, place, first_due=first, now=now, catch_up=catch_up, keep=keep, max_plans=len(due)
    )
    planned = [plan.planned_at for plan in decision.plans]
    assert planned == sorted(set(planned))
    assert set(planned) <= set(due)
    unrun = sum(plan.missed_count for plan in decision.plans)
    ran = sum(plan.missed_reason is None for plan in decision.plans)
    assert unrun == min(len(due) - ran, 1_000)
    assert decision.next_run_at == next_after(schedule, place, now)


@pytest.mark.parametrize(
    ("catch_up", "lateness_s", "overlaps_allowed", "field"),
    [
        (CatchUp.ALL, None, False, "catch_up"),
        (CatchUp.ALL, 300, True, "lateness_s"),
        (CatchUp.NONE, 300, True, "lateness_s"),
        (CatchUp.LATEST, 0, True, "lateness_s"),
        (CatchUp.LATEST, -1, True, "lateness_s"),
        (CatchUp.LATEST, MAX_LATENESS_S + 1, True, "lateness_s"),
    ],
)
def test_contradictory_settings_are_refused(
    catch_up: CatchUp, lateness_s: int | None, overlaps_allowed: bool, field: str
) -> None:
    """S7.11"""
    with pytest.raises(InvalidValue) as refused:
        check_catch_up(catch_up, lateness_s, overlaps_allowed=overlaps_allowed)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("catch_up", "lateness_s", "overlaps_allowed"),
    [
        (CatchUp.LATEST, None, False),
        (CatchUp.LATEST, MAX_LATENESS_S, False),
        (CatchUp.NONE, None, False),
        (CatchUp.ALL, None, True),
    ],
)
def test_consistent_settings_are_accepted(
    catch_up: CatchUp, lateness_s: int | None, overlaps_allowed: bool
) -> None:
    """S7.11"""
    check_catch_up(catch_up, lateness_s, overlaps_allowed=overlaps_allowed)
