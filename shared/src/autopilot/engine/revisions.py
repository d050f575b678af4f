"""Two editors of one thing (S13.2)."""

from __future__ import annotations

from autopilot.domain.errors import Conflict


def check_rev(rev: int, expected_rev: int | None) -> None:
    """Conflict `edit_conflict` unless the editor saw the present state, or does not care (None)."""
    if expected_rev is not None and rev != expected_rev:
        raise Conflict(f"Somebody else's edit came first: this is version {rev} now.", code="edit_conflict")
