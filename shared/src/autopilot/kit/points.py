"""Named points in the code where a test can wait, block, raise or kill; nothing at all in production.

From the environment, only with `AUTOPILOT_TEST_POINTS=1`: `AUTOPILOT_POINTS="dispatcher.after_claim=kill@2,a.b=raise"`
acts on the second hit of the first point and on every hit of the other. Within one process: `with armed(…) as point`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, cast, get_args

from autopilot.domain.errors import AutopilotError

Action = Literal["count", "block", "raise", "kill"]


class PointReached(AutopilotError):
    """A test asked for a failure at this point."""


class Point:
    """One armed point: what it does, from which hit on, and who has been there."""

    def __init__(
        self, name: str, action: Action, *, on_hit: int = 0, error: BaseException | None = None
    ) -> None:
        self.name = name
        self.hits = 0
        self._action = action
        self._on_hit = on_hit
        self._error = error
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def wait_reached(self) -> None:
        """Wait until code stands at this point."""
        await self._reached.wait()

    def release(self) -> None:
        """Let everybody go on who is blocked here, now and later."""
        self._released.set()

    async def pass_through(self) -> None:
        if self.strike() and self._action == "block":
            await self._released.wait()

    def strike(self) -> bool:
        """Count a hit and act on it where acting needs no waiting; whether this hit is one to act on."""
        self.hits += 1
        if self._on_hit not in (0, self.hits):
            return False
        self._reached.set()
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == "raise":
            raise self._error or PointReached(f"a test asked for a failure at {self.name}")
        return True


_points: dict[str, Point] = {}


async def hit(name: str) -> None:
    """Pass the point `name`."""
    if _points and (point := _points.get(name)) is not None:
        await point.pass_through()


def hit_sync(name: str) -> None:
    """Pass the point `name` in code that cannot wait; blocking is not possible there."""
    if _points and (point := _points.get(name)) is not None:
        point.strike()


@contextmanager
def armed(
    name: str, action: Action = "count", *, on_hit: int = 0, error: BaseException | None = None
) -> Iterator[Point]:
    """Arm a point for the length of a test; `on_hit=2` acts on the second hit only, 0 on every one."""
    point = Point(name, action, on_hit=on_hit, error=error)
    before = _points.get(name)
    _points[name] = point
    try:
        yield point
    finally:
        point.release()
        if before is None:
            del _points[name]
        else:
            _points[name] = before


def arm_from_environment(environ: Mapping[str, str]) -> None:
    """Arm what `AUTOPILOT_POINTS` says, if tests are allowed to (`AUTOPILOT_TEST_POINTS=1`)."""
    if environ.get("AUTOPILOT_TEST_POINTS") != "1":
        return
    for part in filter(None, (part.strip() for part in environ.get("AUTOPILOT_POINTS", "").split(","))):
        name, _, what = part.partition("=")
        action, _, on_hit = what.partition("@")
        if action not in get_args(Action) or not name:
            raise AutopilotError(f"AUTOPILOT_POINTS: {part!r} is not NAME=ACTION[@HIT]")
        _points[name] = Point(name, cast("Action", action), on_hit=int(on_hit or 0))
