"""The simulation's own parts: the model knows the edges by heart, stories repeat, and a bad one is cut down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.cron_reading import Cron, Field, Reading, some, star
from tests.support.schedule_model import Fate, Model, Step, Timing
from tests.support.schedule_story import Story, shortest

NOON = datetime(2027, 6, 1, 12, tzinfo=UTC)
DAYS = (star(1, 31), star(1, 12), star(0, 6))
DAILY = Cron(some(0), some(12), *DAYS)
HOURLY = Cron(some(0), star(0, 23), *DAYS)
MICROSECOND = timedelta(microseconds=1)


def seen(
    timing: Timing, *looks: datetime, since: datetime = NOON - timedelta(hours=1)
) -> dict[datetime, Fate]:
    model = Model()
    model.apply(Step(since, "add", 0, 0, timing=timing))
    for at in looks:
        model.apply(Step(at, "look"))
    return model.schedules[0].fates


@pytest.mark.parametrize(
    ("timing", "limit_s"),
    [
        (Timing(cron=DAILY, zone="UTC"), 300),
        (Timing(cron=DAILY, zone="UTC", lateness_s=7200), 7200),
        (Timing(cron=DAILY, zone="UTC", catch_up="none"), 60),
    ],
    ids=["S7.10 default", "S7.11 own limit", "S7.11 none"],
)
def test_the_model_runs_at_the_limit_and_misses_beyond_it(timing: Timing, limit_s: int) -> None:
    last = NOON + timedelta(seconds=limit_s)
    assert seen(timing, last) == {NOON: Fate("ran")}
    assert seen(timing, last + MICROSECOND) == {NOON: Fate("missed", 1)}


def test_the_model_catches_up_a_day_of_all_and_counts_the_rest() -> None:
    """S7.11: 24 hours back are run one by one; 26 occurrences were before them."""
    fates = seen(Timing(cron=HOURLY, zone="UTC", catch_up="all"), NOON + timedelta(hours=50))
    ran = [planned_at for planned_at, fate in fates.items() if fate.state == "ran"]
    assert ran == [NOON + timedelta(hours=n) for n in range(26, 51)]
    assert fates[NOON + timedelta(hours=25)] == Fate("missed", 26)


def test_the_model_owes_nothing_of_a_pause() -> None:
    """S7.10."""
    model = Model()
    model.apply(Step(NOON - timedelta(minutes=1), "add", 0, 0, timing=Timing(cron=HOURLY, zone="UTC")))
    model.apply(Step(NOON - timedelta(seconds=1), "pause", 0))
    model.apply(Step(NOON + timedelta(minutes=1), "resume", 0))
    model.apply(Step(NOON + timedelta(minutes=2), "look"))
    assert model.schedules[0].fates == {}
    assert model.next_due() == NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("hour", "minute", "day", "expected"),
    [
        (some(2), some(0, 30), 28, ["01:00"]),  # the gap: both at its end, once
        (star(0, 23), some(30), 28, ["00:30", "01:30"]),
        (some(2), some(30), 31, ["00:30"]),  # the fold: its first pass
        (star(0, 23), some(30), 31, ["00:30", "01:30"]),
    ],
)
def test_the_slow_reading_knows_the_clock_changes_of_berlin(
    hour: Field, minute: Field, day: int, expected: list[str]
) -> None:
    """S8.4: 28 March and 31 October 2027."""
    month = 3 if day == 28 else 10
    start = datetime(2027, month, day, tzinfo=UTC) - MICROSECOND
    found = Reading(Cron(minute, hour, *DAYS), "Europe/Berlin").newest_in(
        start, start + timedelta(hours=2), 100
    )
    assert [f"{t:%H:%M}" for t in found] == expected


def test_the_same_seed_tells_the_same_story() -> None:
    first, again, other = (Story(seed, triggers=20, looks=60, changes=60).write() for seed in (7, 7, 8))
    assert first == again
    assert first != other


async def test_a_story_is_cut_down_to_the_steps_that_matter() -> None:
    steps = Story(7, triggers=20, looks=60, changes=60).write()
    edit = next(step for step in steps if step.what == "edit")
    add = next(step for step in steps if step.what == "add" and step.trigger == edit.trigger)

    async def fails(part: Sequence[Step]) -> bool:
        return add in part and edit in part

    assert await shortest(steps, [edit.trigger], fails) == [add, edit]
