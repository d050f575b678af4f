"""A simulated year of the real scheduler against a simple model of what should have run (S7.8 to S7.12, S8.4).

The story is the same each time. `AUTOPILOT_SIM_SEED=7` tells another, `AUTOPILOT_SIM_SEED=any` one that nobody knows,
whose seed is printed; `AUTOPILOT_SIM_SCALE=5` writes one five times as long. A story that goes wrong is shortened to the
steps that still make it go wrong.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.cron_reading import Cron, Reading, some, star
from tests.support.schedule_model import How, Step, Timing
from tests.support.schedule_story import START, Story, shortest
from tests.support.schedule_world import live, world

SCALE = float(os.environ.get("AUTOPILOT_SIM_SCALE", "1"))

pytestmark = pytest.mark.timeout(int(300 * max(1.0, SCALE)))


async def test_a_year_of_a_thousand_schedules_goes_as_the_rules_say(
    postgres_admin_url: str, postgres_template: str
) -> None:
    """S7.10, S7.11: kills, outages, held locks, failures and edits lose nothing, double nothing, and count what was missed."""
    seed = _seed()
    story = Story(seed, triggers=int(1000 * SCALE), looks=int(500 * SCALE), changes=int(300 * SCALE))
    steps = story.write()
    print(_summary(story))

    async def mismatches(part: Sequence[Step]) -> list[str]:
        async with world(postgres_admin_url, postgres_template, START) as one:
            return [str(wrong) for wrong in await live(one, part)]

    async with world(postgres_admin_url, postgres_template, START) as one:
        wrong = await live(one, steps)
    if not wrong:
        return

    async def fails(part: Sequence[Step]) -> bool:
        return bool(await mismatches(part))

    short = await shortest(steps, list(dict.fromkeys(one.trigger for one in wrong))[:3], fails)
    pytest.fail(
        "\n".join(
            [
                f"seed {seed}, scale {SCALE:g}: {len(wrong)} mismatches; the first of the whole story:",
                *map(str, wrong[:3]),
                f"the shortest story that goes wrong has {len(short)} steps:",
                *map(str, short[:60]),
                *await mismatches(short),
            ]
        )
    )


async def test_a_scheduler_restarted_every_minute_of_a_week_runs_each_occurrence_once(
    postgres_admin_url: str, postgres_template: str
) -> None:
    """S1.1, S7.8: one process a minute, many of them killed before or after their commit, over a clock change."""
    rand = random.Random(_seed())
    steps = [Step(WEEK, "add", number, number, timing=timing) for number, timing in enumerate(WEEKLY)]
    kills = 0
    for minute in range(7 * 24 * 60):
        # Two in a row at most: an occurrence may come five minutes late and no more.
        how: How = rand.choices(HOWS, (80, 12, 8))[0] if kills < 2 else "whole"
        kills = kills + 1 if how != "whole" else 0
        at = WEEK + timedelta(minutes=minute, milliseconds=rand.choice((0, 1, 500, 20_000, 59_999)))
        steps.append(Step(at, "look", how=how))
    over = WEEK + timedelta(days=7)
    steps.append(Step(over, "look"))
    async with world(postgres_admin_url, postgres_template, WEEK) as one:
        wrong = await live(one, steps, restarts=True)
        assert not wrong, "\n".join(map(str, wrong[:20]))
        for number, timing in enumerate(WEEKLY):
            occurrences = Reading(timing.cron, timing.zone).newest_in(WEEK, over, 100_000)
            assert await one.ran(number) == occurrences


WEEK = datetime(2027, 3, 25, tzinfo=UTC)
HOWS: tuple[How, ...] = ("whole", "killed before commit", "killed after commit")
_DAYS = (star(1, 31), star(1, 12), star(0, 6))
WEEKLY = (
    Timing(cron=Cron(star(0, 59, 15), star(0, 23), *_DAYS), zone="UTC", catch_up="all"),
    Timing(cron=Cron(star(0, 59, 25), star(0, 23), *_DAYS), zone="Europe/Berlin", catch_up="all"),
    Timing(cron=Cron(some(7), star(0, 23), *_DAYS), zone="Europe/Berlin"),
    Timing(cron=Cron(some(0), star(0, 23, 2), *_DAYS), zone="Asia/Kolkata", lateness_s=301),
    Timing(cron=Cron(some(30), some(2), *_DAYS), zone="Europe/Berlin"),
    Timing(cron=Cron(some(0), some(3), *_DAYS), zone="Europe/Berlin"),
    Timing(cron=Cron(some(59), some(23), *_DAYS[:2], some(0, 6)), zone="America/New_York"),
    Timing(cron=Cron(some(0), some(0), some(1), *_DAYS[1:]), zone="Pacific/Chatham"),
)


def _seed() -> int:
    given = os.environ.get("AUTOPILOT_SIM_SEED") or "1"
    seed = secrets.randbelow(1_000_000) if given == "any" else int(given)
    print(f"AUTOPILOT_SIM_SEED={seed} AUTOPILOT_SIM_SCALE={SCALE:g}")
    return seed


def _summary(story: Story) -> str:
    fates = Counter(fate.state for one in story.model.schedules.values() for fate in one.fates.values())
    steps = Counter(step.what for step in story.steps)
    return f"{len(story.steps)} steps {dict(steps)}, plans {dict(fates)}"
