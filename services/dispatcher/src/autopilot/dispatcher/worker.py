"""A dispatch loop: claim a batch, dispatch it, split it where something in it fails (S10.1, S10.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import wake_runtime
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.dispatch import Done, dispatch_entries, settle_failures
from autopilot.dispatcher.plan import judge_claims, judge_failure
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.kit import log, metrics, points
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token
from autopilot.storage import queue
from autopilot.storage.database import Database
from autopilot.storage.errors import Contention
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd

_logger = log.get_logger()
_dispatched = metrics.counter(
    "runs_dispatched_total", "Runs that left the queue, by what became of them", ["outcome"]
)
_skipped = metrics.counter("dispatch_skips_total", "Runs skipped at dispatch, by reason", ["reason"])
_claims = metrics.counter("dispatch_claims_total", "Queue entries claimed")
_again = metrics.counter(
    "dispatch_reclaims_total", "Claims of entries whose earlier claim ended without an outcome"
)
_splits = metrics.counter("dispatch_splits_total", "Batches that failed and were halved")
_attempts = metrics.histogram(
    "dispatch_attempts", "Failed attempts of a run when it is claimed", buckets=(0, 1, 2, 3, 4)
)
_sizes = metrics.histogram("dispatch_batch_runs", "Runs in a batch", buckets=metrics.COUNTS)

_CURSOR_FOR_S = 1.0


class Worker:
    """One loop's state: the cursor, and the batch in hand, which outlives an outage of the database under its lease.

    `tell` is called after each commit that changed a run. Leaving the context gives back what is still in hand.
    """

    def __init__(
        self,
        database: Database,
        bus: Bus,
        config: DispatcherConfig,
        *,
        tell: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._config = config
        self._tell = tell
        self._clock = clock or SystemClock()
        self._token = LeaseToken(random_token())
        self._parts: deque[list[Claimed]] = deque()
        self._cursor = 0
        self._cursor_since = self._clock.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        seqs = [entry.seq for part in self._parts for entry in part]
        if not seqs:
            return
        with suppress(InfrastructureError):  # then the lease runs out by itself
            async with self._database.connection() as conn:
                await queue.give_back(conn, seqs, self._token)
            _logger.info("leases_given_back", entries=len(seqs))

    async def step(self) -> bool:
        """Dispatch one batch; whether there was one. An infrastructure error keeps the rest of it for the next step."""
        if not self._parts:
            await self._claim()
        found = bool(self._parts)
        while self._parts:
            part = self._parts[0]
            replacement = await self._work(part)
            self._parts.popleft()
            self._parts.extendleft(reversed(replacement))
        return found

    async def _claim(self) -> None:
        now = self._clock.monotonic()
        if now - self._cursor_since > _CURSOR_FOR_S:
            self._cursor, self._cursor_since = 0, now
        behind = self._cursor > 0
        entries = await self._claim_from_cursor()
        if not entries and behind:  # what came back behind the cursor
            entries = await self._claim_from_cursor()
        if not entries:
            return
        _claims.inc(len(entries))
        _sizes.observe(len(entries))
        for entry in entries:
            _attempts.observe(entry.attempts)
            if entry.lost_claims > 0:
                _again.inc()
        self._parts.append(entries)
        await points.hit("dispatcher.after_claim")

    async def _claim_from_cursor(self) -> list[Claimed]:
        self._token = LeaseToken(random_token())
        limit = self._config.dispatch_batch_size
        async with self._database.connection() as conn:
            entries = await queue.claim(
                conn,
                limit=limit,
                max_bytes=self._config.dispatch_batch_bytes,
                lease_s=self._config.dispatch_lease_s,
                cursor=self._cursor,
                token=self._token,
            )
        # Only a full claim says that nothing before its end is free.
        self._cursor = entries[-1].seq + 1 if len(entries) == limit else 0
        return entries

    async def _work(self, entries: list[Claimed]) -> list[list[Claimed]]:
        """Dispatch entries in one transaction; what is still to be done afterwards, in parts."""
        exhausted = [(entry, end) for entry in entries if (end := judge_claims(entry)) is not None]
        if exhausted:
            await self._settle(exhausted)
            return (
                [[entry for entry in entries if judge_claims(entry) is None]]
                if len(exhausted) < len(entries)
                else []
            )
        try:
            done = await self._database.transact(
                lambda conn: dispatch_entries(conn, self._token, entries), tries=2
            )
        except Contention as error:
            return self._split(entries, error)
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - per-item isolation: a batch is halved until the poisonous run stands alone
            if len(entries) > 1:
                return self._split(entries, error)
            entry = entries[0]
            _logger.warning(
                "run_dispatch_failed",
                run_id=str(entry.run_id),
                attempts=entry.attempts + 1,
                where=place_of(error),
            )
            await self._settle([(entry, judge_failure(entry, describe_error(error)))])
            return []
        await self._after_commit(done)
        if done.failures:
            await self._settle([(entry, judge_failure(entry, error)) for entry, error in done.failures])
        return [done.left] if done.left else []

    def _split(self, entries: list[Claimed], error: Exception) -> list[list[Claimed]]:
        if len(entries) == 1:
            # Contention costs no attempt, but the claim counts; the entry is free again when its lease runs out.
            _logger.warning("run_dispatch_contended", run_id=str(entries[0].run_id), reason=str(error))
            return []
        _splits.inc()
        _logger.warning("batch_split", runs=len(entries), where=place_of(error))
        middle = len(entries) // 2
        return [entries[:middle], entries[middle:]]

    async def _settle(self, failed: Sequence[tuple[Claimed, Retry | RunEnd]]) -> None:
        done = await self._database.transact(lambda conn: settle_failures(conn, self._token, failed))
        await self._after_commit(done)

    async def _after_commit(self, done: Done) -> None:
        await points.hit("dispatcher.after_commit")
        for outcome, count in done.outcomes.items():
            _dispatched.labels(outcome).inc(count)
        for code, count in done.skips.items():
            _skipped.labels(code.value).inc(count)
        for runtime_id in done.runtimes:
            self._bus.wake(wake_runtime(runtime_id))
        self._tell()
