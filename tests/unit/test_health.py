"""When a rule is paused and what people are told, decided purely (S7.14)."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.domain.health import Health, Limits, judge

LIMITS = Limits()


def kinds(limits: Limits = LIMITS, **health: Any) -> list[str]:
    return [finding.kind.removeprefix("autopilot_") for finding in judge(Health(**health), limits)]


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({}, []),
        ({"failures": 2}, []),
        ({"failures": 3}, ["failing"]),
        ({"failures": 9, "told_failing": True}, []),
        ({"failures": 10, "told_failing": True}, ["paused"]),
        ({"skips": 19}, []),
        ({"skips": 20}, ["skipping"]),
        ({"skips": 20, "told_skipping": True}, []),
        ({"recovered": True}, ["recovered"]),
        ({"recovered": True, "failures": 4}, ["recovered", "failing"]),
        ({"failures": 3, "skips": 20}, ["failing", "skipping"]),
        ({"failures": 10, "skips": 20, "recovered": True}, ["paused"]),
    ],
    ids=str,
)
def test_what_is_done_at_which_streak(health: dict[str, Any], expected: list[str]) -> None:
    """S7.14: ten in a row pause, three are told, twenty skips are told, a success after an alarm is told."""
    assert kinds(**health) == expected


@pytest.mark.parametrize(
    ("failed", "completed", "paused"),
    [
        (45, 5, True),
        (45, 6, False),
        (44, 5, False),
        (49, 0, False),
        (50, 0, True),
        (900, 100, True),
        (899, 101, False),
    ],
)
def test_at_least_nine_in_ten_of_at_least_fifty_pause(failed: int, completed: int, paused: bool) -> None:
    """S7.14"""
    assert (kinds(week_failed=failed, week_completed=completed) == ["paused"]) is paused


def test_each_limit_can_be_moved_and_turned_off() -> None:
    everything = {"failures": 50, "skips": 50, "week_failed": 50}
    assert kinds(Limits(pause_streak=51, pause_min_runs=51), **everything) == ["failing", "skipping"]
    assert kinds(Limits(pause_streak=0), **everything) == ["paused"]
    assert kinds(Limits(pause_min_runs=0), **everything) == ["paused"]
    off = Limits(pause_streak=0, pause_min_runs=0, notice_failures=0, notice_skips=0)
    assert kinds(off, **everything) == []
    assert kinds(Limits(pause_streak=0, pause_percent=50), week_failed=25, week_completed=25) == ["paused"]


def test_the_text_of_a_pause_says_what_was_seen() -> None:
    """CASES OB4: a pause has its reason."""
    [streak] = judge(Health(failures=10, week_failed=60), LIMITS)
    assert streak.text == "10 runs in a row failed"
    [share] = judge(Health(failures=2, week_failed=48, week_completed=2), LIMITS)
    assert share.text == "48 of 50 runs in 7 days failed"
