"""What asyncio may show of a request that is being taken says nothing of it but its id (S9.12)."""

from __future__ import annotations

from typing import cast

from autopilot.domain.ids import DeliveryId, RunId, TriggerId
from autopilot.domain.states import DeliveryStatus
from autopilot.domain.webhook.envelope import parse_body
from autopilot.domain.webhook.signature import SignatureStatus
from autopilot.ingress.decide import Received
from autopilot.ingress.intake import Offer, Taken
from autopilot.ingress.lookup import Found
from autopilot.ingress.write import Born
from autopilot.kit.ids import uuid7
from autopilot.storage.deliveries import NewDelivery


def test_neither_an_offer_nor_what_was_taken_shows_its_contents() -> None:
    id_, raw = DeliveryId(uuid7()), b'{"key": "hunter2"}'
    received = Received(
        delivery_id=id_,
        run_id=RunId(uuid7()),
        headers={"X-Token": "hunter2"},
        raw=raw,
        body=parse_body(raw, None),
    )
    offer = Offer(token_hash=b"hunter2", received=received, found=cast("Found", "hunter2"))
    new = NewDelivery(
        id=id_,
        trigger_id=TriggerId(uuid7()),
        trigger_rev=1,
        autopilot_rev=1,
        event="e",
        dedupe_key=None,
        dedupe_source=None,
        body_sha=None,
        signature_status=SignatureStatus.VALID,
        status=DeliveryStatus.QUEUED,
        headers=b"{}",
        content_type=None,
        body=raw,
        response_status=200,
        response_body=b"{}",
    )
    taken = Taken(cast("Found", "hunter2"), new, Born())
    assert (repr(offer), repr(taken)) == (f"Offer({id_})", f"Taken({id_})")
