"""A dispatch loop: claim a batch, dispatch it, split it where something in it fails (S10.1, S10.2)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import wake_runtime
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.dispatch import Done, dispatch_job, settle_failures
from autopilot.dispatcher.pacing import LOOK_AHEAD, Flood, paced
from autopilot.dispatcher.plan import judge_claims, judge_failure
from autopilot.dispatcher.work import Batch, plan_batch
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.kit import log, metrics, points
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token
from autopilot.kit.loop import StepResult
from autopilot.storage import pending, queue
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention
from autopilot.storage.pending import END_OF_QUEUE, Claim
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd

_logger = log.get_logger()
_dispatched = metrics.counter(
    "runs_dispatched_total", "Runs that left the queue, by what became of them", ["outcome"]
)
_skipped = metrics.counter("dispatch_skips_total", "Runs skipped at dispatch, by reason", ["reason"])
_claims = metrics.counter(
    "dispatch_claims_total", "Queue entries claimed, by failed attempts before", ["attempts"]
)
_again = metrics.counter(
    "dispatch_reclaims_total", "Claims of entries whose earlier claim ended without an outcome"
)
_splits = metrics.counter("dispatch_splits_total", "Batches that failed and were halved")
_sizes = metrics.histogram("dispatch_batch_runs", "Runs in a batch", buckets=metrics.COUNTS)

LOOK_AGAIN_S = 0.02
_CURSOR_FOR_S = 1.0
# The wait for a connection and the statement may take this long by themselves: with a shorter lease nothing would ever be done.
_SLOW_CLAIM_S = 15.0


class BatchSize:
    """How many runs to claim at once: halved after a batch that took long, doubled after a full one that did not (S10.5)."""

    def __init__(self, most: int, *, slow_s: float = 1.0) -> None:
        self._most = most
        self._slow_s = slow_s
        self.now = most

    def note(self, runs: int, seconds: float) -> None:
        """A batch of so many runs took so long."""
        if seconds > self._slow_s:
            self.now = max(1, min(self.now, runs) // 2)
        elif runs >= self.now and seconds < self._slow_s / 4:
            self.now = min(self._most, self.now * 2)


class Worker:
    """One loop's state: the cursor, and the batch in hand.

    `tell` is called after each commit that changed a run, `more` after a claim that left some to others. What is left in
    hand, by trouble of the database or by leaving the context, is given back; where that fails, the lease runs out.
    """

    def __init__(
        self,
        database: Database,
        bus: Bus,
        config: DispatcherConfig,
        *,
        tell: Callable[[], None],
        flood: Flood | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._config = config
        self._tell = tell
        self._flood = flood or Flood(database, config)
        self._clock = clock or SystemClock()
        self.more: Callable[[], None] = lambda: None
        self._token = LeaseToken(random_token())
        self._batches: deque[Batch] = deque()
        self._size = BatchSize(config.dispatch_batch_size)
        self._cursor = 0
        self._cursor_since = self._clock.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with suppress(InfrastructureError):  # then the lease runs out by itself
            await self._give_back()

    async def step(self) -> StepResult:
        """Dispatch one batch; trouble of the database leaves the rest of it to the next step.

        True if it left some to others. Otherwise more is looked for in a moment: whoever would tell of it may have lost NATS.
        """
        await self._give_back()
        began = self._clock.monotonic()
        claim = await self._claim()
        if claim.more:
            self.more()
        if not claim.entries:
            return claim.more
        self._batches.append(Batch.of(claim))
        await points.hit("dispatcher.after_claim")
        while self._batches:
            if self._clock.monotonic() - began > max(self._config.dispatch_lease_s, _SLOW_CLAIM_S):
                await self._give_back()  # perhaps nobody took it, but what it was judged by is old
                break
            parts = await self._work(self._batches[0])
            self._batches.popleft()
            self._batches.extendleft(reversed(parts))
        self._size.note(len(claim.entries), self._clock.monotonic() - began)
        return claim.more or LOOK_AGAIN_S

    async def _give_back(self) -> None:
        """Free what an earlier step left in hand: who claims it next, this loop too, judges it by facts of that time."""
        seqs = [entry.seq for batch in self._batches for entry, _ in batch.entries]
        if not seqs:
            return
        async with self._database.connection() as conn:
            await queue.give_back(conn, seqs, self._token)
        self._batches.clear()
        self._cursor = 0
        _logger.info("leases_given_back", entries=len(seqs))

    async def _claim(self) -> Claim:
        """The next batch, from the cursor on, else from the front, where what was put back lies."""
        now = self._clock.monotonic()
        if now - self._cursor_since > _CURSOR_FOR_S:
            self._cursor, self._cursor_since = 0, now
        from_front = False
        while True:
            from_front = from_front or self._cursor == 0
            claim = await self._claim_from(self._cursor)
            if claim.entries or (from_front and self._cursor == 0):
                self._count(claim)
                return claim

    async def _claim_from(self, start: int) -> Claim:
        self._token = LeaseToken(random_token())
        passing = self._flood.noisy
        end = END_OF_QUEUE
        async with self._database.connection() as conn:
            if passing:
                end = await pending.look_ahead(conn, start, LOOK_AHEAD)
            claim = await pending.claim(
                conn,
                token=self._token,
                limit=self._size.now,
                max_bytes=self._config.dispatch_batch_bytes,
                lease_s=self._config.dispatch_lease_s,
                pace_per_min=self._config.dispatch_pace_per_min,
                start=start,
                end=end,
                passing=passing,
            )
        if claim.next_seq is not None:
            self._cursor = claim.next_seq
        else:
            self._cursor = end if end != END_OF_QUEUE and not claim.entries else 0
        if claim.deferred * 2 > self._size.now:
            self._flood.note(claim.noisy)
        return claim

    def _count(self, claim: Claim) -> None:
        for attempts, entries in Counter(entry.attempts for entry, _ in claim.entries).items():
            _claims.labels(str(attempts)).inc(entries)
        _again.inc(sum(1 for entry, _ in claim.entries if entry.lost_claims > 0))
        if claim.entries:
            _sizes.observe(len(claim.entries))
        paced.inc(claim.deferred)

    async def _work(self, batch: Batch) -> list[Batch]:
        """Dispatch entries in one transaction; what is still to be done afterwards, in parts."""
        exhausted = [(entry, end) for entry, _ in batch.entries if (end := judge_claims(entry)) is not None]
        if exhausted:
            await self._settle(exhausted)
            rest = [each for each in batch.entries if judge_claims(each[0]) is None]
            return [batch.only(rest)] if rest else []
        try:
            job = plan_batch(batch)
            done = await dispatch_job(self._database, self._token, job)
        except Contention as error:
            return self._split(batch, error)
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - per-item isolation: a batch is halved until the poisonous run stands alone
            if len(batch.entries) > 1:
                return self._split(batch, error)
            entry, _ = batch.entries[0]
            _logger.warning(
                "run_dispatch_failed",
                run_id=str(entry.run_id),
                attempts=entry.attempts + 1,
                where=place_of(error),
            )
            await self._settle([(entry, judge_failure(entry, describe_error(error)))])
            return []
        await self._after_commit(done)
        for runtime_id in job.runtimes:
            self._bus.wake(wake_runtime(runtime_id))
        if job.failures:
            await self._settle([(entry, judge_failure(entry, error)) for entry, error in job.failures])
        return [batch.only(job.left)] if job.left else []

    def _split(self, batch: Batch, error: Exception) -> list[Batch]:
        if len(batch.entries) == 1:
            # Contention costs no attempt, but the claim counts; the entry is free again when its lease runs out.
            _logger.warning(
                "run_dispatch_contended", run_id=str(batch.entries[0][0].run_id), reason=str(error)
            )
            return []
        _splits.inc()
        _logger.warning("batch_split", runs=len(batch.entries), where=place_of(error))
        return batch.halves()

    async def _settle(self, failed: Sequence[tuple[Claimed, Retry | RunEnd]]) -> None:
        done = await self._database.transact(lambda conn: settle_failures(conn, self._token, failed))
        await self._after_commit(done)

    async def _after_commit(self, done: Done) -> None:
        await points.hit("dispatcher.after_commit")
        for outcome, count in done.outcomes.items():
            _dispatched.labels(outcome).inc(count)
        for code, count in done.skips.items():
            _skipped.labels(code.value).inc(count)
        self._tell()
