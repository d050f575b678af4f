"""What a due schedule trigger runs and what it has missed (S7.10, S7.11): a pure decision at an instant."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, assert_never

import msgspec

from autopilot.domain.cron import CronSchedule, Zone, newest_until, next_after, occurrences
from autopilot.domain.errors import InvalidValue

DEFAULT_LATENESS_S: Final = 5 * 60
MAX_LATENESS_S: Final = 31 * 24 * 3600
NO_CATCH_UP_LATENESS_S: Final = 60
CATCH_UP_WINDOW_S: Final = 24 * 3600
MAX_KEPT: Final = 100
MAX_PLANS_PER_TICK: Final = 5
MAX_MISSED_COUNT: Final = 1_000


class CatchUp(StrEnum):
    """What happens to occurrences that came due while nobody could run them (S7.11)."""

    LATEST = "latest"
    NONE = "none"
    ALL = "all"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One plan to settle. With `missed_reason` it becomes a skipped run of that reason instead of running.

    `missed_count`: how many occurrences this plan leaves without a run, itself included if it is missed; at most 1,000.
    """

    planned_at: datetime
    missed_reason: Literal["schedule_missed"] | None = None
    missed_count: int = 0


class DueDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The plans to settle now, oldest first, and the occurrence that follows them (None: never again).

    `next_run_at` is later than now, except for catch-up `all` with more than a tick's plans: then it is the next one due.
    """

    plans: tuple[Planned, ...]
    next_run_at: datetime | None


def check_catch_up(catch_up: CatchUp, lateness_s: int | None, *, overlaps_allowed: bool) -> None:
    """Refuse contradictory settings when they are saved (S7.11). `overlaps_allowed`: the overlap policy is `allow`.

    Raises InvalidValue for `catch_up` or `lateness_s`.
    """
    if catch_up is CatchUp.ALL and not overlaps_allowed:
        raise InvalidValue(
            "catch_up", "catch-up 'all' contradicts an overlap policy that drops runs; use 'allow'"
        )
    if lateness_s is None:
        return
    if catch_up is not CatchUp.LATEST:
        raise InvalidValue("lateness_s", f"a lateness limit has no meaning with catch-up '{catch_up}'")
    if not 1 <= lateness_s <= MAX_LATENESS_S:
        raise InvalidValue(
            "lateness_s", f"the lateness limit must be 1 to {MAX_LATENESS_S} seconds (31 days)"
        )


def decide_due(
    schedule: CronSchedule,
    zone: Zone,
    *,
    first_due: datetime,
    now: datetime,
    catch_up: CatchUp,
    lateness_s: int | None = None,
    window_s: int = CATCH_UP_WINDOW_S,
    keep: int = MAX_KEPT,
    max_plans: int = MAX_PLANS_PER_TICK,
) -> DueDecision:
    """Settle everything due in [first_due, now].

    `first_due` is the trigger's `next_run_at`: its oldest occurrence not yet settled. It counts as an occurrence even
    if the expression no longer gives it. `lateness_s` (None: 5 minutes) is for `latest`; `window_s`, `keep` and
    `max_plans` are for `all`. A retry does not come here: it keeps its plan and is never too late.

    The cost does not grow with the pause: missed occurrences are counted to 1,000 and jumped over, and `all` walks
    its window only.
    """
    if first_due > now:
        return DueDecision(plans=(), next_run_at=first_due)
    match catch_up:
        case CatchUp.LATEST:
            limit_s = DEFAULT_LATENESS_S if lateness_s is None else lateness_s
            return _decide_newest(schedule, zone, first_due, now, timedelta(seconds=limit_s))
        case CatchUp.NONE:
            return _decide_newest(schedule, zone, first_due, now, timedelta(seconds=NO_CATCH_UP_LATENESS_S))
        case CatchUp.ALL:
            window_start = now - timedelta(seconds=window_s)
            return _decide_all(schedule, zone, first_due, now, window_start, keep, max_plans)
        case _:
            assert_never(catch_up)


def _decide_newest(
    schedule: CronSchedule, zone: Zone, first_due: datetime, now: datetime, lateness: timedelta
) -> DueDecision:
    newest, due = first_due, 1
    following = _following(schedule, zone, first_due)
    if following is not None and following <= now:
        newest = newest_until(schedule, zone, known=following, until=now)
        due = _count(schedule, zone, first_due, newest)
        following = _following(schedule, zone, now)
    if now - newest > lateness:
        plan = _missed(newest, due)
    else:
        plan = Planned(planned_at=newest, missed_count=min(due - 1, MAX_MISSED_COUNT))
    return DueDecision(plans=(plan,), next_run_at=following)


def _decide_all(
    schedule: CronSchedule,
    zone: Zone,
    first_due: datetime,
    now: datetime,
    window_start: datetime,
    keep: int,
    max_plans: int,
) -> DueDecision:
    """Keep the newest `keep` of the window; what is older becomes one missed plan that carries their number."""
    kept: deque[datetime] = deque(maxlen=keep + 1)
    t: datetime | None = first_due
    if first_due < window_start:
        t = _following(schedule, zone, window_start - timedelta(microseconds=1))
    while t is not None and t <= now:
        kept.append(t)
        t = _following(schedule, zone, t)
    plans: list[Planned] = []
    if len(kept) > keep:
        last_missed = kept.popleft()
        plans.append(_missed(last_missed, _count(schedule, zone, first_due, last_missed)))
    elif first_due < window_start:
        before = window_start - timedelta(microseconds=1)
        last_missed = newest_until(schedule, zone, known=first_due, until=before)
        plans.append(_missed(last_missed, _count(schedule, zone, first_due, last_missed)))
    runs = list(kept)
    plans += [Planned(planned_at=planned_at) for planned_at in runs[:max_plans]]
    rest = runs[max_plans:]
    return DueDecision(plans=tuple(plans), next_run_at=rest[0] if rest else _following(schedule, zone, now))


def _following(schedule: CronSchedule, zone: Zone, t: datetime) -> datetime | None:
    """The next occurrence, and a proof that it is later: one that is not would be settled again and again."""
    following = next_after(schedule, zone, t)
    if following is not None and following <= t:
        raise ArithmeticError(
            f"after {t.isoformat()} the next occurrence is given as {following.isoformat()}"
        )
    return following


def _missed(planned_at: datetime, count: int) -> Planned:
    return Planned(
        planned_at=planned_at, missed_reason="schedule_missed", missed_count=min(count, MAX_MISSED_COUNT)
    )


def _count(schedule: CronSchedule, zone: Zone, first: datetime, last: datetime) -> int:
    """How many occurrences lie in [first, last], both of which are some; it stops just above the most reported."""
    return 1 + len(occurrences(schedule, zone, first, until=last, limit=MAX_MISSED_COUNT))
