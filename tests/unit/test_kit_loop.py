"""Loops: wake-up or poll, nothing lost, backoff on trouble, an orderly stop (S1.2, S1.3, S10.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from autopilot.domain.errors import InfrastructureError
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import FakeClock
from autopilot.kit.loop import PATIENCE_S, Loop, StepResult, wake_one


class Down(InfrastructureError):
    """Not there."""


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[Loop]:
    loop.start()
    try:
        yield loop
    finally:
        await loop.stop(1)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class Steps:
    """A step that notes when it ran and answers what the test put in."""

    def __init__(self, clock: FakeClock, *answers: StepResult | Exception) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.at: list[float] = []

    async def __call__(self) -> StepResult:
        self.at.append(self.clock.monotonic())
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_without_any_wake_up_it_polls_within_the_interval() -> None:
    """S1.2."""
    clock = FakeClock()
    steps = Steps(clock)
    async with running(Loop("l", steps, poll_s=1.0, clock=clock)):
        await clock.advance(10)
    gaps = [after - before for before, after in zip(steps.at, steps.at[1:], strict=False)]
    assert 8 <= len(gaps) <= 12
    assert all(0.9 <= gap <= 1.1 for gap in gaps)
    assert len(set(gaps)) > 1


async def test_a_wake_up_runs_it_at_once() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    async with running(Loop("l", steps, poll_s=60.0, clock=clock)) as loop:
        await settle()
        loop.wake()
        await settle()
    assert steps.at == [0, 0]


async def test_a_wake_up_during_a_step_is_not_lost() -> None:
    clock = FakeClock()
    entered, leave = asyncio.Event(), asyncio.Event()
    ran = 0

    async def step() -> None:
        nonlocal ran
        ran += 1
        entered.set()
        await leave.wait()

    async with running(Loop("l", step, poll_s=60.0, clock=clock)) as loop:
        await entered.wait()
        loop.wake()
        leave.set()
        await settle()
    assert ran == 2


async def test_many_wake_ups_during_a_step_are_one() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    async with running(Loop("l", steps, poll_s=60.0, clock=clock)) as loop:
        await settle()
        for _ in range(100):
            loop.wake()
        await settle()
    assert len(steps.at) == 2


async def test_more_work_runs_it_again_at_once_and_lets_others_run_between() -> None:
    clock = FakeClock()
    steps = Steps(clock, True, True, True)
    async with running(Loop("l", steps, poll_s=60.0, clock=clock)):
        await settle()
    assert steps.at == [0, 0, 0, 0]


@pytest.mark.parametrize(("answer", "least", "most"), [(0.25, 0.25, 0.25), (99.0, 0.9, 1.1), (-1.0, 0, 0)])
async def test_a_number_says_when_to_look_again_but_never_later_than_the_poll(
    answer: float, least: float, most: float
) -> None:
    clock = FakeClock()
    steps = Steps(clock, answer)
    async with running(Loop("l", steps, poll_s=1.0, clock=clock)):
        await clock.advance(1.5)
    assert least <= steps.at[1] <= most


async def test_failures_back_off_from_half_a_second_to_thirty_and_are_forgotten_on_success() -> None:
    """S10.7."""
    clock = FakeClock()
    steps = Steps(clock, *[Down()] * 10, None, Down())
    async with running(Loop("l", steps, poll_s=1.0, clock=clock)) as loop:
        await clock.advance(400)
        assert not loop.failing
    # Rounded: the difference of two sums of seconds is not to the last digit what was waited.
    gaps = [round(after - before, 6) for before, after in zip(steps.at, steps.at[1:], strict=False)]
    assert 0.5 <= gaps[0] <= 0.6
    assert all(24 <= gap <= 30 for gap in gaps[7:10])
    assert all(0.5 <= gap <= 30 for gap in gaps[:10])
    assert 0.5 <= gaps[11] <= 0.6


async def test_a_fault_of_the_code_ends_nothing_either() -> None:
    clock = FakeClock()
    steps = Steps(clock, ZeroDivisionError("bug"))
    async with running(Loop("l", steps, poll_s=1.0, clock=clock)) as loop:
        await settle()
        assert loop.failing
        await clock.advance(1)
        assert not loop.failing


async def test_a_storm_of_wake_ups_does_not_make_a_failing_loop_spin() -> None:
    """S1.3."""
    clock = FakeClock()
    steps = Steps(clock, Down())
    async with running(Loop("l", steps, poll_s=60.0, clock=clock)) as loop:
        for _ in range(50):
            loop.wake()
            await asyncio.sleep(0)
        assert len(steps.at) == 1
        await clock.advance(0.7)
    assert len(steps.at) >= 2


async def test_news_that_the_database_is_back_ends_the_backoff_once() -> None:
    """S1.3: it resumes within seconds, however long the outage."""
    clock = FakeClock()
    steps = Steps(clock, Down(), Down())
    async with running(Loop("l", steps, poll_s=60.0, clock=clock)) as loop:
        loop.retry_now()
        await settle()
        assert len(steps.at) == 1
        loop.retry_now()
        await settle()
    assert len(steps.at) == 2


async def test_stopping_lets_the_step_finish() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()
    finished = False

    async def step() -> None:
        nonlocal finished
        entered.set()
        await leave.wait()
        finished = True

    loop = Loop("l", step)
    loop.start()
    await entered.wait()
    stop = asyncio.create_task(loop.stop(5))
    await settle()
    assert not stop.done()
    leave.set()
    assert await stop is True
    assert finished


async def test_a_step_that_outlasts_the_grace_is_cancelled() -> None:
    entered = asyncio.Event()

    async def step() -> None:
        entered.set()
        await asyncio.Event().wait()

    loop = Loop("l", step)
    loop.start()
    await entered.wait()
    assert await loop.stop(0.01) is False


@pytest.mark.parametrize("answer", [None, Down()], ids=["waiting", "backing off"])
async def test_a_loop_that_waits_stops_at_once(answer: StepResult | Exception) -> None:
    clock = FakeClock()
    loop = Loop("l", Steps(clock, answer), poll_s=60, clock=clock)
    loop.start()
    await settle()
    async with asyncio.timeout(20):
        assert await loop.stop(30)
    assert not loop.stalled


async def test_a_failure_during_the_stop_is_not_waited_out() -> None:
    clock = FakeClock()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        entered.set()
        await leave.wait()
        raise Down

    loop = Loop("l", step, clock=clock)
    loop.start()
    await entered.wait()
    stop = asyncio.create_task(loop.stop(30))
    await settle()
    leave.set()
    async with asyncio.timeout(20):
        assert await stop


async def test_starting_twice_runs_one_loop() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    async with running(Loop("l", steps, poll_s=60, clock=clock)) as loop:
        loop.start()
        await settle()
    assert steps.at == [0]


async def test_a_loop_is_stalled_before_it_starts_and_when_a_step_takes_too_long() -> None:
    clock = FakeClock()
    leave = asyncio.Event()

    async def step() -> None:
        await leave.wait()

    loop = Loop("l", step, clock=clock, stalled_after_s=60)
    seen = [loop.stalled]
    async with running(loop):
        await clock.advance(60)
        seen.append(loop.stalled)
        await clock.advance(1)
        seen.append(loop.stalled)
        leave.set()
        await settle()
        seen.append(loop.stalled)
    assert seen == [True, False, True, False]


def test_backoff_never_leaves_its_bounds() -> None:
    backoff = Backoff()
    for _ in range(2000):
        backoff.note_failure()
        assert 0.5 <= backoff.next_delay_s() <= 30


async def test_a_rest_gathers_wake_ups_into_one_step_and_keeps_none_from_stopping() -> None:
    clock = FakeClock()
    steps = Steps(clock)
    async with running(Loop("l", steps, poll_s=60, rest_s=0.5, clock=clock)) as loop:
        await settle()
        for _ in range(4):
            loop.wake()
            await clock.advance(0.1)
        assert steps.at == [0]
        await clock.advance(0.2)
        assert len(steps.at) == 2
        assert steps.at[1] == pytest.approx(0.5)
        assert await loop.stop(1)
    assert len(steps.at) == 2


async def test_more_to_do_is_done_without_a_rest() -> None:
    clock = FakeClock()
    steps = Steps(clock, True, True)
    async with running(Loop("l", steps, poll_s=60, rest_s=0.5, clock=clock)):
        await settle()
        assert steps.at == [0, 0, 0]


async def test_of_loops_that_share_work_the_first_takes_the_news_unless_it_is_long_at_work() -> None:
    clock = FakeClock()
    gate = asyncio.Event()
    began: list[str] = []

    def sharing(name: str) -> Loop:
        async def step() -> None:
            began.append(name)
            if len(began) > 2:
                await gate.wait()

        return Loop(name, step, poll_s=60, clock=clock)

    async with running(sharing("a")) as a, running(sharing("b")) as b:
        await settle()

        async def woken() -> list[str]:
            wake_one([a, b])
            await settle()
            return began[2:]

        assert await woken() == ["a"]
        assert await woken() == ["a"], "it has just begun and looks again when it is done"
        await clock.advance(PATIENCE_S)
        assert await woken() == ["a", "b"]
        await clock.advance(PATIENCE_S)
        assert await woken() == ["a", "b"], "both are at it: whichever is done first looks again"
        gate.set()
        await settle()
        assert began[4:] == ["a", "b"]


async def test_a_loop_that_fails_is_passed_over() -> None:
    clock = FakeClock()
    failing, well = Steps(clock, Down()), Steps(clock)
    async with (
        running(Loop("a", failing, poll_s=60, clock=clock)) as a,
        running(Loop("b", well, poll_s=60, clock=clock)) as b,
    ):
        await settle()
        wake_one([a, b])
        await settle()
        assert (len(failing.at), len(well.at)) == (1, 2)


async def test_news_left_to_a_step_that_turns_out_to_be_long_goes_to_another() -> None:
    gate, began = asyncio.Event(), list[str]()

    def sharing(name: str) -> Loop:
        async def step() -> None:
            began.append(name)
            if len(began) == 3:
                await gate.wait()

        return Loop(name, step, poll_s=60)

    async with running(sharing("a")) as a, running(sharing("b")) as b:
        await settle()
        for _ in range(2):  # the second comes while the step of the first is young
            wake_one([a, b])
            await settle()
        async with asyncio.timeout(10):
            while began[2:] != ["a", "b"]:
                await asyncio.sleep(0)
        gate.set()


async def test_a_step_that_leaves_work_to_others_wakes_one_of_them_and_not_itself() -> None:
    loops: list[Loop] = []
    began: list[str] = []

    def sharing(name: str) -> Loop:
        async def step() -> None:
            began.append(name)
            if len(began) == 3:
                wake_one(loops, patience_s=0)

        return Loop(name, step, poll_s=60)

    async with running(sharing("a")) as a, running(sharing("b")) as b:
        loops += [a, b]
        await settle()
        wake_one(loops)
        await settle()
        assert began[2:] == ["a", "b"]
