"""Random stories of a year of schedules, the same for the same seed, and their shortest part that still goes wrong."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tests.support.cron_reading import Cron, Field, clock_changes, some, star
from tests.support.schedule_model import How, Model, Step, Timing, What

START = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/St_Johns", "Pacific/Chatham"),
    "Australia/Lord_Howe",  # half an hour
    "Antarctica/Troll",  # two hours
    *("America/Santiago", "Africa/Cairo"),  # at midnight
    "Africa/Casablanca",  # winter time in spring
)
RULE_SIZE = 7
LOOKS_A_WINDOW = 20
MOST_SICK = 3  # each failure costs a batch its halving
CHANGES: dict[What | Literal["cron", "zone", "enabled", "catch_up"], int] = {
    "cron": 24,
    "zone": 14,
    "enabled": 16,
    "catch_up": 10,
    "rename": 4,
    "delete": 3,
    "pause": 8,
    "resume": 12,
    "archive": 1,
    "poison": 10,
    "cure": 6,
}
HOWS: dict[How, int] = {
    "whole": 70,
    "killed before commit": 10,
    "killed after commit": 8,
    "held and committed": 6,
    "held and killed": 6,
}


class Story:
    """Writes a story along a model of its own, so that it knows what is due when."""

    def __init__(self, seed: int, *, triggers: int, looks: int, changes: int) -> None:
        self._random = random.Random(seed)
        self.model = Model()
        self._now = START
        self._triggers = triggers
        self._looks = looks
        self._change_odds = changes / looks
        self._added = 0
        self.steps: list[Step] = []

    def write(self) -> list[Step]:
        """The whole year: stretches watched closely, many about clock changes, and outages between them."""
        windows = self._windows()
        at_once = self._triggers * 3 // 4
        for _ in range(at_once):
            self._add()
        for number, start in enumerate(windows):
            self._now = max(self._now, start)
            later = (self._triggers - at_once) * (number + 1) // len(windows)
            while self._added < at_once + later:
                self._add()
            self._look()
            end = windows[number + 1] if number + 1 < len(windows) else END
            self._watch(end)
        return self.steps

    def _windows(self) -> list[datetime]:
        count = max(1, self._looks // LOOKS_A_WINDOW)
        changes = sorted({at for zone in ZONES for at in clock_changes(zone, START, END)})
        some_changes = self._random.sample(changes, min(len(changes), (count + 1) // 2))
        picked = [at - timedelta(seconds=self._random.randrange(9_000)) for at in some_changes]
        while len(picked) < count:
            hour = START + timedelta(hours=self._random.randrange(365 * 24))
            picked.append(hour - timedelta(seconds=self._random.choice((0, 1, 45, 299, 300, 600))))
        return sorted(max(START, at) for at in picked)

    def _watch(self, end: datetime) -> None:
        for _ in range(LOOKS_A_WINDOW - 1):
            changes = self._change_odds
            while self._random.random() < changes:
                changes -= 1
                due = self.model.next_due()
                if due is not None and self._now < due < min(end, self._now + timedelta(hours=1)):
                    self._now = self._random.choice((self._now, due))
                self._let_pass(0, 0, 1, 59, 240)
                self._change()
            at = self._next_look()
            if max(at, self._now) >= end:
                return
            self._now = at
            self._look()

    def _next_look(self) -> datetime:
        kind = self._random.random()
        if kind < 0.1:
            return self._now + timedelta(seconds=self._random.randrange(5_400))
        due = self.model.next_due()
        if kind < 0.3 and (edge := self._edge()) is not None:
            return edge
        skip = self._random.choice((0, 0, 0, 0, 60, 240, 300, 1_200, 3_600))
        late = self._random.choice((0.0, 0.0, 0.05, 1.0, 59.999999, 60.0))
        return max(self._now, due or self._now) + timedelta(seconds=skip + late)

    def _edge(self) -> datetime | None:
        """The last instant at which some occurrence may still run, or a microsecond beside it."""
        soon = self._now + timedelta(hours=2)
        edges = [
            one.next_due + one.timing.limit
            for one in self.model.schedules.values()
            if one.next_due is not None and self._now < one.next_due + one.timing.limit < soon
        ]
        if not edges:
            return None
        return self._random.choice(edges) + self._random.choice((-1, 0, 0, 1, 1)) * MICROSECOND

    def _look(self) -> None:
        how = self._random.choices(list(HOWS), list(HOWS.values()))[0]
        self._tell("look", how=how)

    def _add(self) -> None:
        self._tell("add", self._added // RULE_SIZE, self._added, timing=random_timing(self._random))
        self._added += 1

    def _change(self) -> None:
        """Somebody changes something, mostly of a trigger that has just run, is due, or has a plan that failed."""
        what = self._random.choices(list(CHANGES), list(CHANGES.values()))[0]
        trigger = self._pick()
        known = self.model.schedules[trigger]
        sick = [number for number, one in self.model.schedules.items() if one.poisoned]
        if what == "cure" or (what == "poison" and (len(sick) >= MOST_SICK or _has_many(known.timing))):
            what = "cure"
            trigger = self._random.choice(sick or [trigger])
        if what in ("pause", "resume", "archive"):
            self._tell(what, known.rule)
            if what == "pause" and self._random.random() < 0.5:
                self._let_pass(0, 1, 59)
                self._tell("resume", known.rule)
        elif what in ("rename", "delete", "poison", "cure"):
            self._tell(what, self.model.schedules[trigger].rule, trigger)
        elif what == "enabled":
            self._edit(trigger, enabled=not known.timing.enabled)
            if known.timing.enabled is False and self._random.random() < 0.5:
                self._let_pass(0, 1, 59)
                self._edit(trigger, enabled=True)
        else:
            fresh = random_timing(self._random)
            more = {"lateness_s": fresh.lateness_s} if what == "catch_up" else {}
            self._edit(trigger, **{what: getattr(fresh, what)}, **more)

    def _pick(self) -> int:
        models = self.model.schedules.items()
        recent = self._now - timedelta(minutes=5)
        groups = (
            [number for number, one in models if one.retries],
            self.model.due(self._now),
            self.model.due(self._now + timedelta(minutes=10)),
            [number for number, one in models if next(reversed(one.fates), START) > recent],
            range(self._added),
        )
        return self._random.choice(self._random.choice([group for group in groups if group]))

    def _edit(self, trigger: int, **changes: Any) -> None:
        rule = self.model.schedules[trigger].rule
        self._tell("edit", rule, trigger, changes=tuple(changes.items()))

    def _let_pass(self, *seconds: int) -> None:
        self._now += timedelta(seconds=self._random.choice(seconds))

    def _tell(self, what: Any, rule: int | None = None, trigger: int | None = None, **more: Any) -> None:
        step = Step(self._now, what, rule, trigger, **more)
        if self.model.can(step):
            self.model.apply(step)
            self.steps.append(step)


def _has_many(timing: Timing) -> bool:
    """Whether an outage leaves so many plans of it that their failures would take most of a test's time."""
    return timing.catch_up == "all" and len(timing.cron.minute.values) * len(timing.cron.hour.values) > 48


def random_timing(rand: random.Random) -> Timing:
    cron = random_cron(rand)
    often = len(cron.minute.values) > 2 and len(cron.hour.values) > 4
    catch_up = rand.choices(("latest", "none", "all"), (60, 15, 8 if often else 30))[0]
    lateness_s = None
    if catch_up == "latest" and rand.random() < 0.5:
        lateness_s = rand.choice((1, 59, 299, 301, 3_600, 86_400, 2_678_400))
    enabled = rand.random() < 0.95
    return Timing(
        cron=cron,
        zone=rand.choice(ZONES),
        catch_up=catch_up,
        lateness_s=lateness_s,
        enabled=enabled,
    )


def random_cron(rand: random.Random) -> Cron:
    """Mostly a few times a day or less, at times that many share; some every few minutes."""
    minute = some(rand.choice((0, 0, 0, 15, 30, 30, 45, 59)))
    hour = some(rand.choice((0, 0, 1, 1, 2, 2, 3, 3, 9, 12, 17, 23)))
    day, month, weekday = star(1, 31), star(1, 12, mark=rand.choice("*?")), star(0, 6)
    kind = rand.choices(
        ("often", "hourly", "in hours", "daily", "night", "weekly", "monthly", "either", "yearly"),
        (2, 3, 3, 10, 10, 26, 26, 8, 12),
    )[0]
    if kind == "often":
        step = rand.choice((1, 2, 5, 7, 20, 59))
        minute, hour = star(0, 59, step), star(0, 23, rand.choice((1, 1, 1, 3)))
    elif kind == "hourly":
        minute, hour = some(*sorted(rand.sample(range(60), rand.choice((1, 1, 2))))), star(0, 23)
    elif kind == "in hours":
        hour = rand.choice((_between(0, 3), _between(8, 18), _between(0, 23), _from(1, 23, 6)))
    elif kind == "night":
        minute, hour = (
            rand.choice((some(0, 30), some(15), star(0, 59, 30))),
            some(*rand.choice(((1, 2), (2,), (0, 2, 3)))),
        )
    elif kind == "weekly":
        weekday = rand.choice((some(0), some(1), some(rand.randrange(7)), _between(1, 5), some(1, 3, 5)))
    elif kind == "monthly":
        day = some(rand.choice((1, 1, 2, 15, 28, 29, 30, 31)))
    elif kind == "either":
        day, weekday = rand.choice((some(1), some(13), star(1, 31, 10))), some(rand.choice((0, 5)))
    elif kind == "yearly":
        day, month = some(rand.choice((1, 14, 28, 29))), some(rand.choice((2, 3, 4, 10, 11)))
    return Cron(minute, hour, day, month, weekday)


def _between(low: int, high: int) -> Field:
    return Field(f"{low}-{high}", frozenset(range(low, high + 1)), star=(low, high) == (0, 23))


def _from(low: int, high: int, step: int) -> Field:
    return Field(f"{low}-{high}/{step}", frozenset(range(low, high + 1, step)))


async def shortest(
    steps: Sequence[Step],
    triggers: Sequence[int | None],
    fails: Callable[[Sequence[Step]], Awaitable[bool]],
    *,
    tries: int = 120,
) -> list[Step]:
    """A short part of a story that still fails: of one of these triggers if possible, then ever fewer steps."""
    best = list(steps)
    for trigger in triggers:
        alone = of_trigger(steps, trigger)
        if await fails(alone):
            best = alone
            break
    chunk = max(1, len(best) // 2)
    while tries > 0:
        at = 0
        while at < len(best) and tries > 0:
            fewer = best[:at] + best[at + chunk :]
            tries -= 1
            if fewer and await fails(fewer):
                best = fewer
            else:
                at += chunk
        if chunk == 1:
            break
        chunk = max(1, chunk // 2)
    return best


def of_trigger(steps: Sequence[Step], trigger: int | None) -> list[Step]:
    """What happens to one trigger and to its rule, and every look."""
    rule = next((step.rule for step in steps if step.trigger == trigger), None)
    return [
        step
        for step in steps
        if step.what == "look" or step.trigger == trigger or (step.trigger is None and step.rule == rule)
    ]
