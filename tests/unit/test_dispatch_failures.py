"""When a failed dispatch is tried again, when the run ends, and how large a batch may be (S10.2, S10.5)."""

from __future__ import annotations

from uuid import UUID

import pytest

from autopilot.dispatcher.plan import judge_claims, judge_failure
from autopilot.dispatcher.worker import BatchSize
from autopilot.domain.ids import AutopilotId, RunId
from autopilot.domain.states import ReasonCode
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd


def entry(*, claims: int = 1, attempts: int = 0) -> Claimed:
    return Claimed(
        seq=7,
        run_id=RunId(UUID(int=1)),
        autopilot_id=AutopilotId(UUID(int=2)),
        trigger_id=None,
        size=0,
        claims=claims,
        attempts=attempts,
    )


@pytest.mark.parametrize(("attempts", "delay_s"), [(0, 2), (1, 8), (2, 32), (3, 128)])
def test_a_failed_attempt_is_repeated_after_a_growing_pause(attempts: int, delay_s: float) -> None:
    outcome = judge_failure(entry(attempts=attempts), "no")
    assert outcome == Retry(seq=7, attempts=attempts + 1, delay_s=delay_s, error="no")


def test_the_fifth_failure_ends_the_run_with_the_last_error() -> None:
    outcome = judge_failure(entry(attempts=4), "x" * 5000)
    assert isinstance(outcome, RunEnd)
    assert (outcome.status, outcome.code, outcome.attempts) == ("failed", ReasonCode.DISPATCH_EXHAUSTED, 5)
    assert len(outcome.text) == 2000
    assert outcome.text.startswith("dispatch failed 5 times: xxx")


@pytest.mark.parametrize(
    ("claims", "attempts", "ends"),
    [(1, 0, False), (10, 0, False), (11, 0, True), (14, 4, False), (15, 4, True)],
)
def test_ten_claims_without_an_outcome_end_the_run(claims: int, attempts: int, ends: bool) -> None:
    """HAZARDS 16: judged failures are not lost claims."""
    assert (judge_claims(entry(claims=claims, attempts=attempts)) is not None) == ends


def test_batches_shrink_while_they_are_slow_and_grow_when_full_ones_are_quick() -> None:
    """S10.5: never beyond the setting, never below one run; a half-empty batch says nothing about a full one."""
    size = BatchSize(500)
    sizes = []
    for runs, seconds in [
        (500, 2.0),
        (250, 2.0),
        (3, 1.5),
        (1, 1.5),
        (1, 1.5),
        (1, 0.5),
        (1, 0.1),
        (1, 0.1),
        (2, 0.1),
    ]:
        size.note(runs, seconds)
        sizes.append(size.now)
    assert sizes == [250, 125, 1, 1, 1, 1, 2, 2, 4]
    for _ in range(20):
        size.note(size.now, 0.01)
    assert size.now == 500
