"""What the demo prints: a timeline for each run, and the checks, of which each must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

WIDTH = 64


@dataclass(frozen=True)
class Check:
    """One thing that must be true, with what was seen when it is not."""

    what: str
    holds: bool
    seen: str


class Report:
    """Prints as it goes; keeps the checks for the end."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def scene(self, number: int, title: str) -> None:
        say(f"\n{number}. {title}")

    def line(self, what: str, outcome: object) -> None:
        say(f"   {what:<{WIDTH}} {outcome}")

    def check(self, what: str, seen: object, wanted: object = True) -> None:
        """Keep a check: what was seen must be what is wanted."""
        self.checks.append(Check(what, seen == wanted, f"{seen!r}, not {wanted!r}"))

    def timeline(self, run: dict[str, Any], steps: Sequence[tuple[str, str | None]]) -> None:
        """The steps of a run that have happened, each with the time since the one before."""
        say(f"\n   run {run['id']}  {run['source']}, {run['status']}")
        before: datetime | None = None
        for name, text in steps:
            if text is None:
                continue
            at = datetime.fromisoformat(text)
            since = "" if before is None else f"{(at - before).total_seconds() * 1000:+10.0f} ms"
            say(f"     {name:<12} {at:%H:%M:%S}.{at.microsecond // 1000:03d}{since}")
            before = at

    def finish(self, took_s: float) -> bool:
        """Print every check and the verdict; whether all hold."""
        say("\nChecks")
        for check in self.checks:
            say(f"   {'ok' if check.holds else 'FAILED':<7} {check.what}")
            if not check.holds:
                say(f"           it was {check.seen}")
        failed = sum(not check.holds for check in self.checks)
        verdict = (
            f"{failed} of {len(self.checks)} checks FAILED" if failed else f"All {len(self.checks)} hold"
        )
        say(f"\n{verdict}, in {took_s:.0f} s.")
        return not failed


def say(text: str) -> None:
    print(text, flush=True)
