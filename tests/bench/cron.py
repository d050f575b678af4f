"""How many times faster than croniter the next occurrence is found: `python -m tests.bench.cron`.

Both are asked for the same following times, turn about in one run, in processor time: what else the machine does falls on
both. Ours go through them several times over, so that both sides are measured for about as long. The first pair is not
counted: it fills the tables of the zone and the calendar, which a process does once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version

from croniter import croniter

from autopilot.domain.cron import next_after, parse, zone

START = datetime(2026, 1, 15, 12, 3, 20, tzinfo=UTC)
Step = Callable[[], datetime | None]

PAIRS = 9
CALLS = 300
LAPS = 20
EXPRESSIONS = (
    ("* * * * *", "UTC"),
    ("*/5 * * * *", "UTC"),
    ("*/15 * * * *", "Europe/Berlin"),
    ("0 * * * *", "America/New_York"),
    ("0 9 * * *", "UTC"),
    ("0 9 * * *", "Europe/Berlin"),
    ("0 9 * * 1-5", "America/New_York"),
    ("10 17 * * 1-5", "Asia/Shanghai"),
    ("0 0 1 * *", "America/Santiago"),
    ("0 9 29 2 *", "UTC"),
)


def _ours(expr: str, name: str) -> Step:
    schedule, place, t = parse(expr), zone(name), START

    def step() -> datetime | None:
        nonlocal t
        found = next_after(schedule, place, t)
        # A rare schedule reaches the end of the year numbers; then it starts again.
        t = found if found is not None and found.year < 2100 else START
        return found

    return step


def _croniters(expr: str, name: str) -> Step:
    start = START.astimezone(zone(name).info)
    schedule = croniter(expr, start, ret_type=datetime)

    def step() -> datetime | None:
        found: datetime = schedule.get_next()
        if found.year >= 2100:
            schedule.set_current(start)
        return found

    return step


def _seconds_per_call(make_step: Callable[[str, str], Step], expr: str, name: str, laps: int) -> float:
    spent = 0.0
    for _ in range(laps):
        step = make_step(expr, name)
        started = time.process_time()
        for _ in range(CALLS):
            step()
        spent += time.process_time() - started
    return spent / (CALLS * laps)


def _pair(expr: str, name: str) -> tuple[float, float]:
    return _seconds_per_call(_ours, expr, name, LAPS), _seconds_per_call(_croniters, expr, name, 1)


def main() -> None:
    """Print a line per expression: both times and the ratio croniter ÷ ours as min, median and max of the pairs."""
    print(f"next occurrence, croniter {version('croniter')} ÷ ours, {PAIRS} pairs of {CALLS} calls")
    print(
        f"{'expression':16}{'timezone':20}{'ours µs':>9}{'croniter µs':>13}{'min':>8}{'median':>8}{'max':>8}"
    )
    for expr, name in EXPRESSIONS:
        pairs = [_pair(expr, name) for _ in range(PAIRS + 1)][1:]
        ratios = [b / a for a, b in pairs]
        a, b = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
        spread = "".join(f"{r:8.1f}" for r in (min(ratios), statistics.median(ratios), max(ratios)))
        print(f"{expr:16}{name:20}{a:9.2f}{b:13.1f}{spread}")


if __name__ == "__main__":
    main()
