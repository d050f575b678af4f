"""What schedules should have done, worked out from the rules alone: a slow model beside the real scheduler (S7.10, S7.11).

The model knows the one thing a person would note down: up to which instant each trigger is settled. A look at a later
instant settles what lies between; an edit, a pause or a resume settles everything up to now without running it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tests.support.cron_reading import Cron, Reading

WINDOW = timedelta(hours=24)
KEPT = 100
PER_TICK = 5
MOST_COUNTED = 1_000
ATTEMPTS = 3
WAITS = (timedelta(minutes=1), timedelta(minutes=5))

How = Literal["whole", "killed before commit", "killed after commit", "held and committed", "held and killed"]
What = Literal[
    "look", "add", "edit", "rename", "delete", "pause", "resume", "archive", "poison", "cure",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What people say about a schedule."""

    cron: Cron
    zone: str
    catch_up: str = "latest"
    lateness_s: int | None = None
    enabled: bool = True

    @property
    def limit(self) -> timedelta:
        """How late an occurrence may be and still run."""
        if self.catch_up == "none":
            return timedelta(seconds=60)
        return timedelta(seconds=300 if self.lateness_s is None else self.lateness_s)


class Step(NamedTuple):
    """One thing that happens. `trigger` and `rule` are numbers; `changes` are fields of Timing."""

    at: datetime
    what: What
    rule: int | None = None
    trigger: int | None = None
    timing: Timing | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    how: How = "whole"

    def __str__(self) -> str:
        told = [f"{self.at:%Y-%m-%d %H:%M:%S.%f}", self.what]
        if self.rule is not None:
            told.append(f"rule {self.rule}")
        if self.trigger is not None:
            told.append(f"trigger {self.trigger}")
        if self.timing is not None:
            told.append(_tell(vars(self.timing).items()))
        if self.changes:
            told.append(_tell(self.changes))
        if self.what == "look" and self.how != "whole":
            told.append(f"({self.how})")
        return "  ".join(told)


def _tell(values: Any) -> str:
    shown = ((name, value.expr if isinstance(value, Cron) else value) for name, value in values)
    return " ".join(f"{name}={value!r}" for name, value in shown)


class Fate(NamedTuple):
    """What became of a plan: `missed` counts the occurrences that it leaves without a run."""

    state: Literal["ran", "missed", "failed", "retrying", "not due"]
    missed: int | None = None
    retry_at: datetime | None = None


@dataclass
class Retry:
    """A plan that failed. `missed`: it was to be recorded as missed."""

    planned_at: datetime
    due_at: datetime
    attempts: int
    missed: bool
    count: int | None
    rev: int


@dataclass
class Schedule:
    """One trigger of the model."""

    rule: int
    timing: Timing
    settled: datetime
    rev: int = 1
    deleted: bool = False
    poisoned: bool = False
    next_due: datetime | None = None
    reading: Reading = field(init=False)
    retries: list[Retry] = field(default_factory=list)
    fates: dict[datetime, Fate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reading = read(self.timing.cron, self.timing.zone)


class Model:
    """All triggers and what became of their plans."""

    def __init__(self) -> None:
        self.schedules: dict[int, Schedule] = {}
        self.statuses: dict[int, str] = {}

    def can(self, step: Step) -> bool:
        """Whether the step has something to act on; a shortened story may have lost it."""
        if step.what == "look":
            return True
        if step.trigger is None:
            return step.rule in self.statuses and not (
                step.what == "pause" and self.statuses[step.rule] == "archived"
            )
        known = self.schedules.get(step.trigger)
        return known is None if step.what == "add" else known is not None and not known.deleted

    def apply(self, step: Step) -> None:
        """Do what the step says, which `can` happen; a look is `look` or `hold`."""
        assert self.can(step)
        if step.what == "look":
            self._see(step)
        elif step.trigger is None:
            assert step.rule is not None
            self._set_status(
                step.rule, {"pause": "paused", "resume": "active"}.get(step.what, "archived"), step.at
            )
        elif step.what == "add":
            assert step.rule is not None
            assert step.timing is not None
            self.statuses.setdefault(step.rule, "active")
            added = Schedule(rule=step.rule, timing=step.timing, settled=step.at)
            self.schedules[step.trigger] = added
            self._start(added, step.at)
        else:
            self._change(self.schedules[step.trigger], step)

    def live(self, schedule: Schedule) -> bool:
        return schedule.timing.enabled and not schedule.deleted and self.statuses[schedule.rule] == "active"

    def has_retries(self, now: datetime) -> bool:
        return any(retry.due_at <= now for one in self.schedules.values() for retry in one.retries)

    def can_hold(self, now: datetime) -> bool:
        """Whether a scheduler that looks now has one commit for everything, and stands before it with all locks."""
        poisoned = any(one.poisoned for one in self.schedules.values())
        return bool(self.due(now)) and not poisoned and not self.has_retries(now)

    def due(self, now: datetime) -> list[int]:
        """The triggers that a look at that time finds due."""
        return [
            number
            for number, one in self.schedules.items()
            if one.next_due is not None and one.next_due <= now
        ]

    def next_due(self) -> datetime | None:
        """When the next occurrence or retry of any trigger comes."""
        waits = [one.next_due for one in self.schedules.values() if one.next_due is not None]
        waits += [retry.due_at for one in self.schedules.values() for retry in one.retries]
        return min(waits, default=None)

    def _see(self, step: Step) -> None:
        if step.how == "killed before commit":
            return
        if step.how == "held and killed" and self.can_hold(step.at):
            return
        if step.how == "killed after commit":
            self._see_one_commit(step.at)
            return
        self._settle_retries(step.at)
        while due := self.due(step.at):
            for number in due:
                self._tick(self.schedules[number], step.at)

    def _see_one_commit(self, now: datetime) -> None:
        """The scheduler dies after its first commit, which is that of the retries if any are due."""
        poisoned = [one for one in self.schedules.values() if one.poisoned]
        for one in poisoned:
            one.poisoned = False
        if self.has_retries(now):
            self._settle_retries(now)
        else:
            for number in self.due(now):
                self._tick(self.schedules[number], now)
        for one in poisoned:
            one.poisoned = True

    def _tick(self, one: Schedule, now: datetime) -> None:
        """Decide what a trigger owes. S7.10, S7.11."""
        assert one.next_due is not None
        following = one.reading.first_after(one.next_due)
        if following is None or following > now:
            due = [one.next_due]
        else:
            due = one.reading.newest_in(one.settled, now, MOST_COUNTED + KEPT + 1)
        settled = now
        if one.timing.catch_up == "all":
            keep = [t for t in due if t >= now - WINDOW][-KEPT:]
            gone = due[: len(due) - len(keep)]
            if gone:
                self._attempt(one, now, gone[-1], missed=True, count=min(len(gone), MOST_COUNTED))
            for planned_at in keep[:PER_TICK]:
                self._attempt(one, now, planned_at, missed=False, count=None)
            if keep[PER_TICK:]:
                settled = keep[PER_TICK - 1]
        elif now - due[-1] > one.timing.limit:
            self._attempt(one, now, due[-1], missed=True, count=min(len(due), MOST_COUNTED))
        else:
            self._attempt(one, now, due[-1], missed=False, count=min(len(due) - 1, MOST_COUNTED) or None)
        self._settle(one, settled)

    def _attempt(
        self,
        one: Schedule,
        now: datetime,
        planned_at: datetime,
        *,
        missed: bool,
        count: int | None,
        attempts: int = 1,
    ) -> None:
        assert attempts > 1 or planned_at not in one.fates, "the model itself plans nothing twice"
        if not one.poisoned:
            one.fates[planned_at] = Fate("missed" if missed else "ran", count)
        elif attempts == ATTEMPTS:
            one.fates[planned_at] = Fate("failed")
        else:
            retry = Retry(planned_at, now + WAITS[attempts - 1], attempts, missed, count, one.rev)
            one.retries.append(retry)
            one.fates[planned_at] = Fate("retrying", None, retry.due_at)

    def _settle_retries(self, now: datetime) -> None:
        for one in self.schedules.values():
            if not one.retries:
                continue
            due = [retry for retry in one.retries if retry.due_at <= now]
            one.retries = [retry for retry in one.retries if retry.due_at > now]
            for retry in due:
                if retry.rev != one.rev:
                    one.fates[retry.planned_at] = Fate("not due")
                    continue
                self._attempt(
                    one,
                    now,
                    retry.planned_at,
                    missed=retry.missed,
                    count=retry.count,
                    attempts=retry.attempts + 1,
                )

    def _change(self, one: Schedule, step: Step) -> None:
        if step.what in ("poison", "cure"):
            one.poisoned = step.what == "poison"
            return
        if step.what == "delete":
            one.deleted = True
        before, one.timing = one.timing, replace(one.timing, **dict(step.changes))
        same = (before.cron.expr, before.zone, before.enabled) == (
            one.timing.cron.expr,
            one.timing.zone,
            one.timing.enabled,
        )
        if one.deleted or not same:
            one.reading = read(one.timing.cron, one.timing.zone)
            one.rev += 1
            self._start(one, step.at)

    def _set_status(self, rule: int, status: str, now: datetime) -> None:
        if self.statuses[rule] == status:
            return
        self.statuses[rule] = status
        for one in self.schedules.values():
            if one.rule == rule and not one.deleted:
                one.rev += 1
                self._start(one, now)

    def _start(self, one: Schedule, now: datetime) -> None:
        """Nothing up to now is owed any more, and a trigger that is off owes nothing at all."""
        self._settle(one, now)

    def _settle(self, one: Schedule, until: datetime) -> None:
        one.settled = until
        one.next_due = one.reading.first_after(until) if self.live(one) else None


@lru_cache(maxsize=8192)
def read(cron: Cron, zone: str) -> Reading:
    return Reading(cron, zone)
