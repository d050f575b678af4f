"""Which plans of a scope are to be run now, decided purely (S7.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from autopilot.storage.executions import Span

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def newest_on(cadence: timedelta, until: datetime) -> datetime:
    """The newest multiple of the cadence since 1970 that is not later than `until`."""
    return _EPOCH + (until - _EPOCH) // cadence * cadence


def all_on(cadence: timedelta, since: datetime, until: datetime) -> list[datetime]:
    """The multiples of the cadence in (since, until], oldest first."""
    first, last = (since - _EPOCH) // cadence + 1, (until - _EPOCH) // cadence
    return [_EPOCH + number * cadence for number in range(first, last + 1)]


def latest_only(due: Sequence[datetime], span: Span) -> list[datetime]:
    """The newest due plan, unless it or a newer one was run before."""
    newest = max(due, default=None)
    if newest is None or (span.newest is not None and newest <= span.newest):
        return []
    return [newest]


def every_plan(
    due: Sequence[datetime], span: Span, known: Collection[datetime], *, limit: int
) -> list[datetime]:
    """The due plans without a row, oldest first.

    A hole between rows is filled too, so that a newer plan that succeeded never jumps over it (HAZARDS 24). A scope
    begins with its newest plan: what was before it is nobody's debt.
    """
    if span.oldest is None:
        return latest_only(due, span)
    return sorted(plan for plan in set(due) - set(known) if plan > span.oldest)[:limit]
