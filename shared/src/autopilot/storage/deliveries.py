"""Webhook deliveries: born with slot, body, run and queue entry in one statement; repeats found and counted (S9.7, S9.14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec import Raw

from autopilot.domain.ids import AgentId, DeliveryId, RunId, TriggerId, UserId
from autopilot.domain.states import AttributionSource, DeliveryStatus, ReasonCode
from autopilot.domain.webhook.providers import DedupeSource
from autopilot.domain.webhook.signature import SignatureStatus
from autopilot.storage import queries
from autopilot.storage.bodies import pack
from autopilot.storage.database import Conn

SQL = queries.load("deliveries")

Slot = tuple[TriggerId, str]


class NewDelivery(msgspec.Struct, kw_only=True, gc=False):
    """One delivery to be born, as decided on the trigger and rule of these revisions.

    `queued` with a run is an admitted one, without a run one that the dispatcher decides on (S9.10: `autopilot_rev` may
    be None then); `dispatched` has a run that was skipped at once, `ignored` and `rejected` have none.
    `headers` and `response_body` are JSON. `body_sha` is the SHA-256 of the body where its key came as an
    Idempotency-Key, which must not come with another one.
    """

    id: DeliveryId
    trigger_id: TriggerId
    trigger_rev: int
    autopilot_rev: int | None
    event: str
    dedupe_key: str | None
    dedupe_source: DedupeSource | None
    body_sha: bytes | None
    signature_status: SignatureStatus
    status: DeliveryStatus
    headers: bytes
    content_type: str | None
    body: bytes
    response_status: int
    response_body: bytes
    reason_code: ReasonCode | None = None
    reason: str | None = None
    run_id: RunId | None = None
    agent_id: AgentId | None = None
    accountable_id: UserId | None = None
    attribution_source: AttributionSource | None = None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that is in the database, with what was answered. `waits`: the dispatcher has not had it yet."""

    id: DeliveryId
    run_id: RunId | None
    response_status: int
    response_body: bytes
    waits: bool


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery that holds a dedupe slot. `waits`: the dispatcher has not had it yet."""

    id: DeliveryId
    run_id: RunId | None
    body_sha: bytes | None
    waits: bool


class _Own(msgspec.Struct, omit_defaults=True, gc=False):
    """What no two deliveries have in common. `ruling` is the place of all the rest among that of its batch, from 1 on."""

    id: DeliveryId
    headers: Raw
    response_body: Raw
    ruling: int
    raw_size: int | None
    run_id: RunId | None = None
    dedupe_key: str | None = None
    body_sha: bytes | None = None


_SHARED = tuple(
    name for name in NewDelivery.__struct_fields__ if name not in _Own.__struct_fields__ and name != "body"
)
_ruling_of = attrgetter(*_SHARED)
_encode = msgspec.json.Encoder().encode


async def insert_deliveries(conn: Conn, deliveries: Sequence[NewDelivery]) -> set[DeliveryId]:
    """Write what can be written; the ids that are new. The absent are stale, repeats, or written by an earlier try."""
    rulings: dict[tuple[object, ...], int] = {}
    bodies: list[bytes] = []
    own: list[_Own] = []
    for new in deliveries:
        body, raw_size = pack(new.body)
        bodies.append(body)
        own.append(
            _Own(
                id=new.id,
                headers=Raw(new.headers),
                response_body=Raw(new.response_body),
                ruling=rulings.setdefault(_ruling_of(new), len(rulings) + 1),
                raw_size=raw_size,
                run_id=new.run_id,
                dedupe_key=new.dedupe_key,
                body_sha=new.body_sha,
            )
        )
    shared = [list(values) for values in zip(*rulings, strict=True)]
    rows = await conn.fetch(SQL["insert_deliveries"], _encode(own).decode(), bodies, *shared)
    return {row[0] for row in rows}


async def find_written(conn: Conn, ids: Sequence[DeliveryId]) -> dict[DeliveryId, Written]:
    """Which of these are in the database."""
    rows = await conn.fetch(SQL["find_written"], ids)
    return {
        row["id"]: Written(
            id=row["id"],
            run_id=row["run_id"],
            response_status=row["response_status"],
            response_body=row["response_body"].encode(),
            waits=row["waits"],
        )
        for row in rows
    }


async def find_slots(conn: Conn, slots: Sequence[Slot]) -> dict[Slot, Holder]:
    """Who holds these slots; a free one is absent."""
    rows = await conn.fetch(SQL["find_slots"], [slot[0] for slot in slots], [slot[1] for slot in slots])
    return {
        (row["trigger_id"], row["dedupe_key"]): Holder(
            id=row["id"], run_id=row["run_id"], body_sha=row["body_sha"], waits=row["waits"]
        )
        for row in rows
    }


async def count_attempts(conn: Conn, repeats: Mapping[DeliveryId, int]) -> None:
    """Add repeats to their originals. Alone in its transaction: it locks deliveries in id order."""
    await conn.execute(SQL["count_attempts"], list(repeats), list(repeats.values()))
