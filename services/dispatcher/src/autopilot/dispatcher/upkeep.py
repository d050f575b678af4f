"""What keeps the queue honest: due retries move back, lost releases are made good, gauges are read (S3.6, S10.2)."""

from __future__ import annotations

from collections.abc import Callable

from autopilot.domain.ids import AutopilotId
from autopilot.domain.states import ReasonCode
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.kit import log, metrics
from autopilot.storage import backlog, queue, run_transitions
from autopilot.storage.database import Conn, Database
from autopilot.storage.run_transitions import RunEnd

_logger = log.get_logger()
_waiting = metrics.gauge("waiting_items", "What waits, by kind; counted up to 10,000", ["kind"])
_oldest = metrics.gauge(
    "oldest_due_seconds", "How long the oldest that could go on has waited, by kind", ["kind"]
)
_swept = metrics.counter(
    "parked_runs_swept_total", "Waiters whose release was lost or whose deadline passed", ["outcome"]
)

MOVE_LIMIT = 1000
SWEEP_LIMIT = 200


class Upkeep:
    """The steps of the slow loops; `wake` is called when the queue has got entries."""

    def __init__(self, database: Database, *, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake

    async def move_due(self) -> bool:
        """Bring deferred entries that are due back into the queue; whether there may be more."""
        async with self._database.connection() as conn:
            moved = await queue.move_due(conn, limit=MOVE_LIMIT)
        if moved:
            self._wake()
        return moved == MOVE_LIMIT

    async def sweep_parked(self) -> bool:
        """The net under `release_parked`; whether there may be more."""
        async with self._database.connection() as conn:
            idle = await queue.list_idle_parked(conn, limit=SWEEP_LIMIT)
        if not idle:
            return False
        released, expired = await self._database.transact(lambda conn: _sweep(conn, idle))
        _swept.labels("released").inc(released)
        _swept.labels("missed").inc(expired)
        if released or expired:
            _logger.info("parked_runs_swept", released=released, missed=expired)
            self._wake()
        return len(idle) == SWEEP_LIMIT and released + expired > 0

    async def measure(self) -> None:
        """Read the gauges."""
        async with self._database.connection() as conn:
            waits = await backlog.measure(conn)
        for kind, waiting in waits.items():
            _waiting.labels(kind).set(waiting.items)
            if kind not in backlog.TIMELESS:
                _oldest.labels(kind).set(waiting.oldest_s)


async def _sweep(conn: Conn, autopilot_ids: list[AutopilotId]) -> tuple[int, int]:
    """Under the autopilots' locks: end what is past its deadline, release what waits for nothing; (released, ended)."""
    locked = await lock_for_finish(conn, autopilot_ids)
    expired = await queue.take_expired_parked(conn, locked)
    if expired:
        await run_transitions.end_pending_runs(
            conn,
            [
                RunEnd(
                    run_id=parked.run_id,
                    status="skipped",
                    code=ReasonCode.SCHEDULE_MISSED,
                    text="the run waited behind an earlier one until its deadline",
                    attempts=0,
                )
                for parked in expired
            ],
        )
        await run_transitions.note_fired(conn, {p.trigger_id for p in expired if p.trigger_id is not None})
    return len(await release_parked(conn, locked)), len(expired)
