"""Errors in words: what people may read of one, and what the log may (S9.12)."""

from __future__ import annotations

import traceback
from pathlib import Path

from autopilot.domain.errors import AutopilotError


def describe_error(error: BaseException) -> str:
    """What a person may read: our own words, or the bare class of what was not foreseen."""
    return str(error) if isinstance(error, AutopilotError) else f"unexpected {type(error).__name__}"


def place_of(error: BaseException) -> str:
    """Class and place for the log, without the message: the driver's quote rows, bodies included."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
