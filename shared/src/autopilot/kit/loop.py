"""The loop that every background job runs in: wake-up or poll, backoff on trouble, an orderly stop (S1.2, S1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from autopilot.domain.errors import AutopilotError
from autopilot.kit import log, metrics, tasks
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.ids import jitter

StepResult = bool | float | None
"""True: there is more to do now. A number: look again within so many seconds. None or False: wait for news or the poll."""

_logger = log.get_logger()
_failures = metrics.counter("loop_failures_total", "Steps that failed, by loop and kind", ["loop", "kind"])
_seconds = metrics.histogram("loop_step_seconds", "How long a step took", ["loop"])

PATIENCE_S = 0.1
_POLL_JITTER = 0.1


class Loop:
    """Runs `step` again and again until stopped; `wake()` makes it run at once.

    A wake-up that comes while a step runs is kept for the next one. After a failure wake-ups are kept too, but
    the loop waits out its backoff (0.5 to 30 s), unless `retry_now()` says that what was broken is back.
    `rest_s` gathers: after a step that left nothing to do, wake-ups of so many seconds are answered by one step.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[StepResult]],
        *,
        poll_s: float = 1.0,
        rest_s: float = 0.0,
        clock: Clock | None = None,
        stalled_after_s: float = 60.0,
    ) -> None:
        self.name = name
        self._step = step
        self._poll_s = poll_s
        self._rest_s = rest_s
        self._clock = clock or SystemClock()
        self._stalled_after_s = stalled_after_s
        self._news = asyncio.Event()
        self._recovery = asyncio.Event()
        self._backoff = Backoff()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._step_began: float | None = None
        self._waits = False
        self._observe = _seconds.labels(name).observe
        for kind in ("infrastructure", "error"):  # the first failure must be seen as a rise
            _failures.labels(name, kind)

    @property
    def failing(self) -> bool:
        """Whether the last step failed."""
        return self._backoff.failures > 0

    @property
    def owes_news(self) -> bool:
        """Whether a wake-up came that its step, which was at work already, is too early for."""
        return self._step_began is not None and self._news.is_set()

    def takes_news(self, within_s: float) -> bool:
        """Whether a wake-up is answered soon: it waits, or its step has not been running for so long."""
        if self._waits:
            return True
        began = self._step_began
        return not self.failing and began is not None and self._clock.monotonic() - began < within_s

    @property
    def stalled(self) -> bool:
        """Whether it should run and does not: never started, died, or one step takes far too long."""
        if self._task is None or (self._task.done() and not self._stop.is_set()):
            return True
        began = self._step_began
        return began is not None and self._clock.monotonic() - began > self._stalled_after_s

    def start(self) -> None:
        """Begin; a second call changes nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"loop {self.name}")

    def wake(self) -> None:
        """There may be something to do."""
        self._news.set()

    def retry_now(self) -> None:
        """What made steps fail may be over: end the backoff."""
        self._recovery.set()

    async def stop(self, grace_s: float = 30.0) -> bool:
        """Let the current step finish, or cancel it after `grace_s`; whether it finished by itself."""
        self._stop.set()
        self._news.set()
        self._recovery.set()
        if self._task is None:
            return True
        _, late = await asyncio.wait([self._task], timeout=grace_s)
        for task in late:
            await tasks.end(task)
        return not late

    async def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            result = await self._guarded_step()
            if self._stop.is_set():
                return
            if self.failing:
                self._recovery.clear()
                await self._wait_for(self._recovery, self._backoff.next_delay_s())
            elif result is not True:
                self._waits = True
                if self._rest_s:
                    await self._wait_for(self._stop, self._rest_s)
                await self._wait_for(self._news, self._pause_after(result))
                self._waits = False
            else:
                await asyncio.sleep(0)  # a loop that is always busy must not starve the others

    async def _guarded_step(self) -> StepResult:
        self._step_began = began = self._clock.monotonic()
        try:
            result = await self._step()
        except Exception as error:  # noqa: BLE001 - the seam of the loop: one bad step must not end it
            self._note_failure(error)
            return None
        finally:
            self._step_began = None
            self._observe(self._clock.monotonic() - began)
        if self.failing:
            _logger.info("loop_recovered", loop=self.name, failures=self._backoff.failures)
            self._backoff.reset()
        return result

    def _note_failure(self, error: Exception) -> None:
        self._backoff.note_failure()
        expected = isinstance(error, AutopilotError) and error.infrastructure
        _failures.labels(self.name, "infrastructure" if expected else "error").inc()
        if expected:
            _logger.warning(
                "loop_waits_for_infrastructure",
                loop=self.name,
                failures=self._backoff.failures,
                error=type(error).__name__,
                reason=str(error),
            )
        else:
            _logger.error("loop_step_failed", loop=self.name, failures=self._backoff.failures, exc_info=error)

    def _pause_after(self, result: StepResult) -> float:
        poll_s = jitter(self._poll_s, _POLL_JITTER)
        if result is None or result is False:
            return poll_s
        return max(0.0, min(float(result), poll_s))

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> None:
        if event.is_set():
            return
        waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def wake_one(loops: Sequence[Loop], *, patience_s: float = PATIENCE_S) -> None:
    """Wake the first of the loops that share some work and is not in the middle of a long step.

    One whose step began less than `patience_s` ago is left to take the news with the next: what comes meanwhile is done
    together, and costs the database less. Where that step turns out to be long, another takes them. A step that finds
    more than it can take wakes others itself, without patience: it is at work too, and would find itself.
    """
    for loop in loops:
        if loop.takes_news(within_s=patience_s):
            loop.wake()
            if loop.owes_news:
                asyncio.get_running_loop().call_later(patience_s, _pass_on, loop, loops)
            return
    for loop in loops:
        loop.wake()


def _pass_on(loop: Loop, loops: Sequence[Loop]) -> None:
    if loop.owes_news:
        wake_one(loops)
