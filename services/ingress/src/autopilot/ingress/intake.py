"""Taking webhooks, many at once: looked up, decided and written in one go (HAZARDS 11, 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from autopilot.domain.errors import InfrastructureError
from autopilot.domain.webhook.envelope import BadBody
from autopilot.ingress.decide import Received, decide
from autopilot.ingress.lookup import Found, Lookups, note_undecided
from autopilot.ingress.write import Fate, Settled, Stale, waits_for_dispatch, write
from autopilot.kit import points
from autopilot.kit.batch import Coalescer
from autopilot.storage.database import Database
from autopilot.storage.deliveries import NewDelivery
from autopilot.storage.errors import Contention

PATIENCE_S = 0.02
MAX_PENDING = 10_000
_WRITERS = 4  # one decides, one inserts, one waits for the disk, one hears of it
_DECISIONS = 3


class Offer(msgspec.Struct, kw_only=True):
    """A request to be taken. `found` is what its token leads to; None: that is looked up with its batch.

    `new` is what was decided. It stays when a batch is tried again, so that what may have been written is found again.
    """

    token_hash: bytes
    received: Received
    found: Found | None = None
    new: NewDelivery | None = None

    def __repr__(self) -> str:  # asyncio shows what tasks and futures hold when it debugs
        return f"Offer({self.received.delivery_id})"


class Taken(msgspec.Struct, frozen=True):
    """What was decided of a request, on which facts, and what became of it."""

    found: Found
    new: NewDelivery
    fate: Settled

    def __repr__(self) -> str:
        return f"Taken({self.new.id})"


class Unsettled(InfrastructureError):
    """The rule changed faster than a delivery could be written."""


class Blocked(InfrastructureError):
    """The item, or another one of its batch, waits for somebody else's transaction."""


class Intake:
    """Takes what is offered; a writer looks up, decides and writes a batch while others do so and the next one gathers.

    The items of a batch behind another session's lock go on one by one, and those that are blocked themselves are
    tried again apart from all others, so that they hold up nobody.
    """

    def __init__(
        self, database: Database, lookups: Lookups, wake: Callable[[], None], *, hold_s: float
    ) -> None:
        self._database = database
        self._lookups = lookups
        self._wake = wake
        self._batches: Coalescer[Offer, Taken | Stale | None] = Coalescer(
            self._take_unless_blocked,
            name="webhook_writes",
            size=_size,
            max_pending=MAX_PENDING,
            writers=_WRITERS,
            hold_s=hold_s,
            patience_s=PATIENCE_S,
        )
        self._singly: Coalescer[Offer, Taken | Stale | None] = Coalescer(
            self._take_unless_blocked,
            name="webhook_writes_singly",
            max_items=1,
            size=_size,
            max_pending=MAX_PENDING,
            writers=_WRITERS,
            hold_s=hold_s,
        )
        self._alone: Coalescer[Offer, Taken | Stale | None] = Coalescer(
            self._take, name="webhook_writes_alone", max_items=1, max_pending=1_000, hold_s=hold_s
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for writes in (self._batches, self._singly, self._alone):
            await writes.close()

    async def take(self, offer: Offer) -> Taken | None:
        """Decide and write; None: its token leads nowhere. BadBody for bad headers, an InfrastructureError when it took too long.

        What has changed between look-up and write is looked up and decided again. Where the database refuses what was
        decided, the delivery alone is written (S9.10).
        """
        for _ in range(_DECISIONS):
            try:
                taken = await self._submit(offer)
            except (BadBody, InfrastructureError):
                raise
            except Exception as error:  # isolation of admission: an event must not be lost with its run
                if offer.found is None or offer.found.decision is None:
                    raise
                note_undecided("write", error)
                offer.found, offer.new = msgspec.structs.replace(offer.found, decision=None), None
                continue
            if not isinstance(taken, Stale):
                return taken
            offer.found = offer.new = None
        raise Unsettled

    async def _submit(self, offer: Offer) -> Taken | Stale | None:
        for writes in (self._batches, self._singly):
            try:
                return await writes.submit(offer)
            except Blocked:
                pass
        return await self._alone.submit(offer)

    async def _take_unless_blocked(self, offers: list[Offer]) -> Sequence[Taken | Stale | Exception | None]:
        try:
            return await self._take(offers)
        except Contention:
            return [Blocked() for _ in offers]

    async def _take(self, offers: list[Offer]) -> Sequence[Taken | Stale | Exception | None]:
        unseen = {offer.token_hash for offer in offers if offer.found is None}
        async with self._database.connection() as conn:
            targets = await self._lookups.find_all(conn, unseen) if unseen else {}
            refusals = [_decide(offer, targets) for offer in offers]
            fates = iter(await write(conn, [offer.new for offer in offers if offer.new is not None]))
        results = [
            _taken(offer.found, offer.new, next(fates)) if offer.found and offer.new else refusal
            for offer, refusal in zip(offers, refusals, strict=True)
        ]
        if any(isinstance(taken, Taken) and waits_for_dispatch(taken.new, taken.fate) for taken in results):
            self._wake()
        return results


def _size(offer: Offer) -> int:
    return len(offer.received.raw)


def _taken(found: Found, new: NewDelivery, fate: Fate) -> Taken | Stale:
    return fate if isinstance(fate, Stale) else Taken(found, new, fate)


def _decide(offer: Offer, targets: Mapping[bytes, Found | Exception]) -> Exception | None:
    """Decide, or say why not: None for a token that leads nowhere."""
    if offer.new is not None:
        return None
    if offer.found is None:
        found = targets.get(offer.token_hash)
        if not isinstance(found, Found):
            return found
        offer.found = found
    try:
        offer.new = _decided(offer.found, offer.received)
    except Exception as error:  # noqa: BLE001 - per-item isolation: its neighbours have nothing to do with it
        return error
    return None


def _decided(found: Found, received: Received) -> NewDelivery:
    """An event on which deciding fails is kept for the dispatcher to decide on (S9.10)."""
    try:
        points.hit_sync("ingress.decide")
        return decide(found, received)
    except BadBody:
        raise
    except Exception as error:  # noqa: BLE001 - isolation of admission: what it cannot judge must not be lost
        note_undecided("decide", error)
    return decide(msgspec.structs.replace(found, decision=None), received)
