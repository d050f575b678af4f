"""Every clock change of every zone between 2020 and 2040, with expressions aimed at it, against cronsim (S8.4, S8.5)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from tests.support.clock_changes import Change, zones_by_changes
from tests.support.cron_specs import shown_at

from autopilot.domain.cron import next_after, occurrences, parse, zone, zone_names

PARTS = 3  # for tests side by side
BEFORE = LARGEST_SHIFT = timedelta(hours=4)
PROBES = (
    *(timedelta(minutes=m) for m in (-121, -61, -60, -31, -1, 0, 1, 29, 30, 44, 59, 60, 61, 120)),
    *(timedelta(microseconds=u) for u in (-1_000_000, -1, 1)),
)


def fixed_expressions(change: Change) -> list[str]:
    low, mid, high = change.ends()
    return [
        f"{mid.minute} {mid.hour} * * *",
        f"0,15,30,45 {low.hour},{high.hour} * * *",
        f"{mid.minute} {mid.hour} {mid.day} {mid.month} *",
        f"{high.minute} {high.hour} {low.day} * {high.isoweekday() % 7}",
    ]


def elapsed_expressions(change: Change) -> list[str]:
    low, mid, _ = change.ends()
    return [
        f"{mid.minute} * * * *",
        f"{low.minute} */2 * * *",
        f"*/15 {mid.hour} {mid.day} {mid.month} *",
    ]


def fixed_in_cronsim(expr: str, after: datetime, until: datetime, info: ZoneInfo) -> list[datetime]:
    found = []
    for local in CronSim(expr, after.astimezone(info)):
        t = local.astimezone(UTC)
        if t > until:
            break
        found.append(t)
    return found


def elapsed_in_cronsim(expr: str, after: datetime, until: datetime, info: ZoneInfo) -> list[datetime]:
    found: set[datetime] = set()
    for local in CronSim(expr, (after - LARGEST_SHIFT).astimezone(info).replace(tzinfo=None)):
        if local > (until + LARGEST_SHIFT).astimezone(info).replace(tzinfo=None):
            break
        found |= shown_at(local, info)
    return sorted(t for t in found if after < t <= until)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("expressions", "oracle", "stretch"),
    [
        (fixed_expressions, fixed_in_cronsim, timedelta(hours=25)),
        (elapsed_expressions, elapsed_in_cronsim, timedelta(hours=4)),
    ],
    ids=["fixed times", "elapsed time"],
)
def test_every_clock_change_agrees_with_cronsim(
    expressions: Callable[[Change], list[str]],
    oracle: Callable[[str, datetime, datetime, ZoneInfo], list[datetime]],
    stretch: timedelta,
    part: int,
) -> None:
    """S8.4, S8.5: from some hours before to `stretch` after, and asked at instants before, at, inside and after it."""
    asked = 0
    for changes, names in list(zones_by_changes().items())[part::PARTS]:
        for change in changes:
            first, last = change.at - BEFORE, change.at + stretch
            for expr in expressions(change):
                schedule = parse(expr)
                expected = oracle(expr, first, last, zone(names[0]).info)
                for name in names:
                    found = occurrences(schedule, zone(name), first, until=last, limit=1_000)
                    assert found == expected, (expr, name)
                    asked += 1
                for probe in (change.at + delta for delta in PROBES):
                    after = next_after(schedule, zone(names[-1]), probe)
                    nth = bisect_right(expected, probe)
                    if nth < len(expected):
                        assert after == expected[nth], (expr, names[-1], probe)
                    else:
                        assert after is None or after > last, (expr, names[-1], probe)
    assert asked > 4_000


def test_every_zone_with_changes_is_among_them() -> None:
    """S8.2: found by ZoneInfo, so that the sweep does not rest on our own tables."""
    sizes = {name: len(changes) for changes, names in zones_by_changes().items() for name in names}
    assert len(sizes) == len(zone_names())
    assert sum(sizes.values()) > 7_500
    assert sizes["America/New_York"] == sizes["Europe/Berlin"] == sizes["Pacific/Chatham"] == 40
    assert sizes["UTC"] == sizes["Asia/Kolkata"] == 0
