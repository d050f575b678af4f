"""Named points do nothing unless a test arms them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from autopilot.domain.errors import AutopilotError
from autopilot.kit import points

KILLED_AT = """
import asyncio, os
from autopilot.kit import points
points.arm_from_environment(os.environ)
async def main():
    for number in range(3):
        print(number, flush=True)
        await points.hit("a.b")
asyncio.run(main())
"""


async def test_an_unarmed_point_does_nothing() -> None:
    with points.armed("other", "raise"):
        await points.hit("a.b")
        points.hit_sync("a.b")


async def test_a_blocked_point_holds_until_released() -> None:
    with points.armed("a.b", "block") as point:
        task = asyncio.create_task(points.hit("a.b"))
        await point.wait_reached()
        assert not task.done()
        point.release()
        await task


async def test_leaving_the_test_releases_who_is_blocked() -> None:
    with points.armed("a.b", "block") as point:
        task = asyncio.create_task(points.hit("a.b"))
        await point.wait_reached()
    await task
    await points.hit("a.b")


async def test_an_error_is_raised_on_the_chosen_hit_only() -> None:
    with points.armed("a.b", "raise", on_hit=2, error=ValueError("now")) as point:
        await points.hit("a.b")
        with pytest.raises(ValueError, match="now"):
            points.hit_sync("a.b")
        await points.hit("a.b")
        assert point.hits == 3


@pytest.mark.parametrize(("allowed", "code"), [("1", -signal.SIGKILL), ("", 0)])
def test_the_environment_kills_only_where_tests_are_allowed(allowed: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT],
        env={"AUTOPILOT_POINTS": "a.b=kill@2", "AUTOPILOT_TEST_POINTS": allowed},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == code
    assert done.stdout.split() == (["0", "1"] if allowed else ["0", "1", "2"])


def test_a_point_that_asks_for_something_unknown_is_refused() -> None:
    with pytest.raises(AutopilotError, match="AUTOPILOT_POINTS"):
        points.arm_from_environment({"AUTOPILOT_TEST_POINTS": "1", "AUTOPILOT_POINTS": "a.b=explode"})
