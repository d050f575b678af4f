"""The admissions loop: deliveries that ingress kept without deciding on them are decided here (S9.10, S9.15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.plan import MAX_ATTEMPTS, MAX_LOST_CLAIMS, RETRY_DELAYS_S, TEXT_LIMIT
from autopilot.domain.errors import InfrastructureError
from autopilot.domain.ids import LeaseToken
from autopilot.domain.states import DeliveryStatus, ReasonCode
from autopilot.engine.undecided import settle_undecided
from autopilot.kit import log, metrics, points
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import random_token
from autopilot.storage import queue, undecided
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention
from autopilot.storage.queue import Retry
from autopilot.storage.undecided import ClaimedDelivery, Settlement

_logger = log.get_logger()
_finished = metrics.counter(
    "admissions_finished_total", "Deliveries kept undecided, by what became of them", ["outcome"]
)


class Admissions:
    """One loop's state: the batch in hand, which outlives an outage of the database under its lease.

    `wake` is called when runs have joined the queue. Leaving the context gives back what is still in hand.
    """

    def __init__(self, database: Database, config: DispatcherConfig, *, wake: Callable[[], None]) -> None:
        self._database = database
        self._config = config
        self._wake = wake
        self._token = LeaseToken(random_token())
        self._held: list[ClaimedDelivery] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self._held:
            return
        with suppress(InfrastructureError):  # then the lease runs out by itself
            async with self._database.connection() as conn:
                await queue.give_back(conn, [entry.seq for entry in self._held], self._token)

    async def step(self) -> bool:
        """Decide on one batch; whether there was one. An infrastructure error keeps it for the next step."""
        if not self._held:
            self._token = LeaseToken(random_token())
            async with self._database.connection() as conn:
                self._held = await undecided.claim(
                    conn,
                    limit=self._config.dispatch_batch_size,
                    max_bytes=self._config.dispatch_batch_bytes,
                    lease_s=self._config.dispatch_lease_s,
                    token=self._token,
                )
            if not self._held:
                return False
            await points.hit("admissions.after_claim")
        await self._finish(self._held)
        self._held = []
        return True

    async def _finish(self, entries: Sequence[ClaimedDelivery]) -> None:
        """Decide on all in one transaction, or where that fails on each in its own: one cannot harm the others."""
        try:
            settled = await self._database.transact(lambda conn: self._settle(conn, entries), tries=2)
        except Contention as error:
            if len(entries) == 1:  # it costs no attempt; the entry is free again when its lease runs out
                _logger.warning(
                    "admission_contended", delivery_id=str(entries[0].delivery_id), reason=str(error)
                )
                return
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - per-item isolation: the poisonous delivery is tried alone
            if len(entries) == 1:
                await self._note_failure(entries[0], error)
                return
        else:
            await self._after_commit(settled)
            return
        for entry in entries:
            await self._finish([entry])

    async def _settle(self, conn: Conn, entries: Sequence[ClaimedDelivery]) -> list[Settlement]:
        await undecided.hold_rules(
            conn, {entry.autopilot_id for entry in entries}, {entry.trigger_id for entry in entries}
        )
        held = await queue.lock_claimed(conn, [entry.seq for entry in entries], self._token)
        mine = [entry for entry in entries if entry.seq in held]
        lost = [entry for entry in mine if entry.lost_claims >= MAX_LOST_CLAIMS]
        settled = await settle_undecided(
            conn, [entry.delivery_id for entry in mine if entry.lost_claims < MAX_LOST_CLAIMS]
        )
        if lost:
            text = f"{MAX_LOST_CLAIMS} claims of the delivery ended without an outcome"
            settled += await _fail(conn, [(entry, text) for entry in lost])
        await queue.delete_entries(conn, held)
        await points.hit("admissions.before_commit")
        return settled

    async def _note_failure(self, entry: ClaimedDelivery, error: Exception) -> None:
        """Another attempt after 2, 8, 32 and 128 s; the fifth failure ends it (S10.2)."""
        attempts, text = entry.attempts + 1, describe_error(error)[:TEXT_LIMIT]
        _logger.warning(
            "admission_failed",
            delivery_id=str(entry.delivery_id),
            attempts=attempts,
            where=place_of(error),
        )

        async def note(conn: Conn) -> list[Settlement]:
            if not await queue.lock_claimed(conn, [entry.seq], self._token):
                return []
            if attempts < MAX_ATTEMPTS:
                delay_s = RETRY_DELAYS_S[attempts - 1]
                await queue.defer_retries(
                    conn, [Retry(seq=entry.seq, attempts=attempts, delay_s=delay_s, error=text)]
                )
                await undecided.note_errors(conn, [(entry.delivery_id, text)])
                return []
            await queue.delete_entries(conn, [entry.seq])
            return await _fail(conn, [(entry, f"admission failed {attempts} times: {text}")])

        settled = await self._database.transact(note)
        if not settled:
            _finished.labels("retry").inc()
        await self._after_commit(settled)

    async def _after_commit(self, settled: Sequence[Settlement]) -> None:
        await points.hit("admissions.after_commit")
        for one in settled:
            _finished.labels(one.status.value).inc()
        if any(one.status is DeliveryStatus.QUEUED for one in settled):
            self._wake()


async def _fail(conn: Conn, failed: Sequence[tuple[ClaimedDelivery, str]]) -> list[Settlement]:
    settlements = [
        Settlement(
            id=entry.delivery_id,
            status=DeliveryStatus.FAILED,
            reason_code=ReasonCode.INTERNAL_ERROR,
            error=text[:TEXT_LIMIT],
        )
        for entry, text in failed
    ]
    written = await undecided.settle(conn, settlements)
    return [settlement for settlement in settlements if settlement.id in written]
