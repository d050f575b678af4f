"""Writing deliveries: many in one statement, repeats told from news, an unknown COMMIT outcome found out (S9.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from autopilot.domain.errors import AutopilotError, InfrastructureError
from autopilot.domain.ids import DeliveryId
from autopilot.domain.states import DeliveryStatus
from autopilot.kit import points
from autopilot.kit.batch import Coalescer
from autopilot.storage.database import Conn, Database
from autopilot.storage.deliveries import (
    Holder,
    NewDelivery,
    Written,
    count_attempts,
    find_slots,
    find_written,
    insert_deliveries,
)
from autopilot.storage.errors import Contention

PATIENCE_S = 0.02
MAX_PENDING = 10_000


class Born(msgspec.Struct, frozen=True):
    """The delivery is durable. `written` is what an earlier try stored, None when this one wrote what it was given."""

    written: Written | None = None


class Repeat(msgspec.Struct, frozen=True):
    """The delivery was here before; the original has been told."""

    original: Holder


class KeyReused(msgspec.Struct, frozen=True):
    """The same Idempotency-Key came with another body."""


class Stale(msgspec.Struct, frozen=True):
    """The trigger or its rule has changed since it was looked up, or a slot was just given back: decide anew."""


Fate = Born | Repeat | KeyReused | Stale

_NEW = Born()


class BatchBlocked(AutopilotError):
    """A batch waits for a lock behind which only some of its items belong."""


class ItemBlocked(InfrastructureError):
    """The item waits for somebody else's transaction."""


class Writes:
    """Takes deliveries that were decided and says what became of each.

    An item behind another session's lock is taken out of its batch and retried alone, so that it holds up nobody.
    """

    def __init__(self, database: Database, wake: Callable[[], None], *, hold_s: float = 5.0) -> None:
        self._database = database
        self._wake = wake
        self._batches: Coalescer[NewDelivery, Fate] = Coalescer(
            self._write,
            name="webhook_writes",
            size=lambda new: len(new.body),
            max_pending=MAX_PENDING,
            hold_s=hold_s,
            patience_s=PATIENCE_S,
        )
        self._alone: Coalescer[NewDelivery, Fate] = Coalescer(
            self._store, name="webhook_writes_alone", max_items=1, max_pending=1_000, hold_s=hold_s
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._batches.close()
        await self._alone.close()

    async def submit(self, new: NewDelivery) -> Fate:
        """Write one delivery; raises an InfrastructureError when it could not be written in time."""
        try:
            return await self._batches.submit(new)
        except ItemBlocked:
            return await self._alone.submit(new)

    async def _write(self, batch: list[NewDelivery]) -> Sequence[Fate | Exception]:
        try:
            return await self._store(batch)
        except Contention as error:
            if len(batch) == 1:
                return [ItemBlocked()]
            raise BatchBlocked from error

    async def _store(self, batch: list[NewDelivery]) -> Sequence[Fate]:
        await points.hit("ingress.before_write")
        fates: dict[DeliveryId, Fate]
        async with self._database.connection() as conn:
            born = await insert_deliveries(conn, batch)
            rest = [new for new in batch if new.id not in born]
            fates = await _explain(conn, rest) if rest else {}
        await points.hit("ingress.after_write")
        if any(_waits_for_dispatch(new, fates.get(new.id, _NEW)) for new in batch):
            self._wake()
        return [fates.get(new.id, _NEW) for new in batch]


async def _explain(conn: Conn, rest: Sequence[NewDelivery]) -> dict[DeliveryId, Fate]:
    """Why rows were not written: by an earlier try of this process, since their slot is taken, or since they are stale."""
    written = await find_written(conn, [new.id for new in rest])
    wanted = {
        (new.trigger_id, new.dedupe_key)
        for new in rest
        if new.id not in written and new.dedupe_key is not None and new.status is not DeliveryStatus.REJECTED
    }
    holders = await find_slots(conn, sorted(wanted)) if wanted else {}
    fates: dict[DeliveryId, Fate] = {}
    for new in rest:
        holder = holders.get((new.trigger_id, new.dedupe_key or ""))
        if new.id in written:
            fates[new.id] = Born(written[new.id])
        elif holder is None or new.status is DeliveryStatus.REJECTED:
            fates[new.id] = Stale()
        elif new.dedupe_source == "idempotency_key" and new.body_sha != holder.body_sha:
            fates[new.id] = KeyReused()
        else:
            fates[new.id] = Repeat(holder)
    repeats = Counter(fate.original.id for fate in fates.values() if isinstance(fate, Repeat))
    if repeats:
        await count_attempts(conn, repeats)
    return fates


def _waits_for_dispatch(new: NewDelivery, fate: Fate) -> bool:
    match fate:
        case Born(written=None):
            return new.status is DeliveryStatus.QUEUED
        case Born(written=Written() as written):
            return written.waits
        case Repeat(original=original):
            return original.waits
        case _:
            return False
