"""Every clock change of every zone between 2020 and 2040, found by ZoneInfo alone."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from autopilot.domain.cron import zone, zone_names

START, STOP = datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
SECOND, STRIDE = timedelta(seconds=1), timedelta(days=3)


class Change(NamedTuple):
    """The clock is set to another offset at that instant."""

    at: datetime
    before: timedelta
    after: timedelta

    def ends(self) -> tuple[datetime, datetime, datetime]:
        """The wall-clock times where the gap or fold begins, in its middle, and where it ends."""
        wall = self.at.replace(tzinfo=None)
        low, high = sorted((wall + self.before, wall + self.after))
        return low, low + (high - low) / 2, high


@lru_cache(maxsize=1)
def zones_by_changes() -> dict[tuple[Change, ...], list[str]]:
    """Zones that change their clocks alike share what cronsim is asked."""
    grouped: dict[tuple[Change, ...], list[str]] = defaultdict(list)
    for name in sorted(zone_names()):
        grouped[_changes(zone(name).info)].append(name)
    return grouped


def _changes(info: ZoneInfo) -> tuple[Change, ...]:
    found = []
    t, before = START, _offset(START, info)
    while t < STOP:
        after = _offset(t + STRIDE, info)
        if after != before:
            found.append(Change(_instant_between(t, t + STRIDE, info), before, after))
        t, before = t + STRIDE, after
    return tuple(found)


def _instant_between(low: datetime, high: datetime, info: ZoneInfo) -> datetime:
    before = _offset(low, info)
    while high - low > SECOND:
        middle = low + (high - low) // 2
        if _offset(middle, info) == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def _offset(t: datetime, info: ZoneInfo) -> timedelta:
    offset = t.astimezone(info).utcoffset()
    assert offset is not None
    return offset
