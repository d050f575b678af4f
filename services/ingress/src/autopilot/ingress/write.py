"""Writing deliveries: many in one statement, repeats told from news, an unknown COMMIT outcome found out (S9.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from autopilot.domain.ids import DeliveryId
from autopilot.domain.states import DeliveryStatus
from autopilot.kit import points
from autopilot.storage.database import Conn
from autopilot.storage.deliveries import (
    Holder,
    NewDelivery,
    Written,
    count_attempts,
    find_slots,
    find_written,
    insert_deliveries,
)


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


Settled = Born | Repeat | KeyReused
Fate = Settled | Stale

_NEW = Born()


async def write(conn: Conn, batch: Sequence[NewDelivery]) -> list[Fate]:
    """Write deliveries with all that is born with them, and say what became of each; each statement commits by itself."""
    if not batch:
        return []
    await points.hit("ingress.before_write")
    born = await insert_deliveries(conn, batch)
    if len(born) == len(batch):
        await points.hit("ingress.after_write")
        return [_NEW] * len(batch)
    fates = await _explain(conn, [new for new in batch if new.id not in born])
    await points.hit("ingress.after_write")
    return [fates.get(new.id, _NEW) for new in batch]


def waits_for_dispatch(new: NewDelivery, fate: Fate) -> bool:
    """Whether the dispatcher has something to do because of this delivery."""
    match fate:
        case Born(written=None):
            return new.status is DeliveryStatus.QUEUED
        case Born(written=Written() as written):
            return written.waits
        case Repeat(original=original):
            return original.waits
        case _:
            return False


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
        elif new.body_sha is not None and holder.body_sha not in (None, new.body_sha):
            fates[new.id] = KeyReused()
        else:
            fates[new.id] = Repeat(holder)
    repeats = Counter(fate.original.id for fate in fates.values() if isinstance(fate, Repeat))
    if repeats:
        await count_attempts(conn, repeats)
    return fates
