"""How a rule fares by its newest runs, and what is to be done about it: a pause, a notice, or nothing (S7.14)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from autopilot.domain.notices import NoticeKind


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a rule is paused, and when people are told before that; 0 runs: never for that cause."""

    pause_streak: int = 10
    pause_percent: int = 90
    pause_min_runs: int = 50
    notice_failures: int = 3
    notice_skips: int = 20

    @property
    def streak(self) -> int:
        """How many failures in a row are worth counting."""
        return max(self.pause_streak, self.notice_failures)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a rule that ended since it was last resumed, manual ones left out.

    `failures` are those since the newest success, at most `Limits.streak`; `skips` those since a run last came to
    work, at most `Limits.notice_skips`; `week_failed` and `week_completed` are of seven days, the completed ones counted
    no further than the share needs. `told_…`: there is a notice of this very streak. `recovered`: a run succeeded
    after the last alarm, and nobody has been told.
    """

    failures: int = 0
    skips: int = 0
    week_failed: int = 0
    week_completed: int = 0
    told_failing: bool = False
    told_skipping: bool = False
    recovered: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell people; `AUTOPILOT_PAUSED` is to be done as well. `text` follows the rule's title."""

    kind: NoticeKind
    text: str


def judge(health: Health, limits: Limits) -> list[Finding]:
    """What is to be done; a rule that is paused needs no other word."""
    cause = _pause_cause(health, limits)
    if cause is not None:
        return [Finding(kind=NoticeKind.AUTOPILOT_PAUSED, text=cause)]
    return list(_notices(health, limits))


def _pause_cause(health: Health, limits: Limits) -> str | None:
    if 0 < limits.pause_streak <= health.failures:
        return f"{limits.pause_streak} runs in a row failed"
    ended = health.week_failed + health.week_completed
    if 0 < limits.pause_min_runs <= ended and health.week_failed * 100 >= limits.pause_percent * ended:
        return f"{health.week_failed} of {ended} runs in 7 days failed"
    return None


def _notices(health: Health, limits: Limits) -> Iterator[Finding]:
    if health.recovered:
        yield Finding(kind=NoticeKind.AUTOPILOT_RECOVERED, text="succeeded again")
    if 0 < limits.notice_failures <= health.failures and not health.told_failing:
        text = f"failed {health.failures} times in a row"
        yield Finding(kind=NoticeKind.AUTOPILOT_FAILING, text=text)
    if 0 < limits.notice_skips <= health.skips and not health.told_skipping:
        yield Finding(
            kind=NoticeKind.AUTOPILOT_SKIPPING, text=f"was skipped {limits.notice_skips} times in a row"
        )
