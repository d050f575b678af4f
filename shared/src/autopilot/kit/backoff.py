"""Exponential backoff with jitter for what stands on other machines (S10.7: 0.5 to 30 s)."""

from __future__ import annotations

from autopilot.kit.ids import jitter


class Backoff:
    """How long to wait after so many failures in a row."""

    def __init__(self, *, first_s: float = 0.5, last_s: float = 30.0, spread: float = 0.2) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._spread = spread
        self.failures = 0

    def note_failure(self) -> None:
        self.failures += 1

    def reset(self) -> None:
        self.failures = 0

    def next_delay_s(self) -> float:
        """The wait that the failures so far call for, never outside first_s..last_s."""
        doublings = min(max(self.failures - 1, 0), 32)
        drawn = jitter(self._first_s * 2.0**doublings, self._spread)
        return min(max(drawn, self._first_s), self._last_s)
