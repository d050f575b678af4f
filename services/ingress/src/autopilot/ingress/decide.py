"""The pure part of taking a webhook: from a request and its trigger to the delivery that is written (S9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from autopilot.domain.ids import DeliveryId, RunId
from autopilot.domain.states import DeliveryStatus, ReasonCode
from autopilot.domain.webhook import filters, providers, signature, tokens
from autopilot.domain.webhook.envelope import ParsedBody, is_ping, read_event
from autopilot.domain.webhook.signature import SignatureStatus
from autopilot.ingress.answers import Answer, encode
from autopilot.ingress.lookup import Found
from autopilot.storage.deliveries import NewDelivery

Reason = tuple[ReasonCode, str]

OUTCOMES: dict[DeliveryStatus, str] = {
    DeliveryStatus.QUEUED: "accepted",
    DeliveryStatus.DISPATCHED: "skipped",
    DeliveryStatus.IGNORED: "ignored",
    DeliveryStatus.REJECTED: "rejected",
}
"""What a delivery born with a status is answered with (S9.8)."""

_UNSIGNED: dict[SignatureStatus, Reason] = {
    SignatureStatus.MISSING: (ReasonCode.MISSING_SIGNATURE, "the signature is missing"),
    SignatureStatus.INVALID: (ReasonCode.INVALID_SIGNATURE, "the signature does not fit the body"),
}
_DISABLED: Reason = (ReasonCode.TRIGGER_DISABLED, "the trigger is disabled")
_PING: Reason = (ReasonCode.PROVIDER_PING, "the provider only asked whether somebody is there")
_FILTERED: Reason = (ReasonCode.EVENT_FILTERED, "the trigger does not ask for this event")


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request with its body read. The ids are made once, so that a retry after a lost answer finds itself."""

    delivery_id: DeliveryId
    run_id: RunId
    headers: Mapping[str, str]
    raw: bytes
    body: ParsedBody

    def __repr__(self) -> str:
        return f"Received({self.delivery_id})"


def decide(found: Found, received: Received) -> NewDelivery:
    """Judge a request, first hit first: signature, ping, trigger, autopilot, filter, admission. BadBody for bad headers.

    Whether it is a duplicate comes between signature and ping; that only the write can tell.
    """
    provider, headers = found.provider, received.headers
    key, key_source = providers.dedupe_key(provider, headers) or (None, None)
    event = read_event(provider, headers, received.body.head)
    signed = signature.verify(provider, found.secrets, headers, received.raw)
    kept = tokens.stored_headers(headers)
    status, reason, runs = _judge(found, received, event, signed)
    code, text = reason or (None, None)
    run_id = received.run_id if runs else None
    target, attribution = found.target, found.decision.attribution if runs else None
    answer = _answer(found, received.delivery_id, run_id, status, reason)
    return NewDelivery(
        id=received.delivery_id,
        trigger_id=target.trigger_id,
        trigger_rev=target.trigger_rev,
        autopilot_rev=target.snapshot.autopilot_rev,
        event=event,
        dedupe_key=key,
        dedupe_source=key_source,
        body_sha=sha256(received.raw).digest(),
        signature_status=signed,
        status=status,
        headers=encode(kept).decode(),
        content_type=kept.get("Content-Type"),
        body=received.raw,
        response_status=401 if status is DeliveryStatus.REJECTED else 200,
        response_body=encode(answer).decode(),
        reason_code=code,
        reason=text,
        run_id=run_id,
        agent_id=found.decision.agent_id if runs else None,
        accountable_id=attribution.accountable if attribution is not None else None,
        attribution_source=attribution.source if attribution is not None else None,
    )


def _judge(
    found: Found, received: Received, event: str, signed: SignatureStatus
) -> tuple[DeliveryStatus, Reason | None, bool]:
    """The status a delivery is born with, why, and whether it has a run."""
    if signed in _UNSIGNED:
        return DeliveryStatus.REJECTED, _UNSIGNED[signed], False
    ignored = _ignored(found, received, event)
    if ignored is not None:
        return DeliveryStatus.IGNORED, ignored, False
    decision = found.decision
    if decision.outcome == "admit":
        return DeliveryStatus.QUEUED, None, True
    return DeliveryStatus.DISPATCHED, _reason_of(found), True


def _ignored(found: Found, received: Received, event: str) -> Reason | None:
    trigger = found.target.snapshot.trigger
    if is_ping(found.provider, event):
        return _PING
    if trigger is not None and not trigger.enabled:
        return _DISABLED
    if found.decision.outcome == "stop":
        return _reason_of(found)
    if not filters.matches(found.filters, found.provider, event, received.body.head):
        return _FILTERED
    return None


def _reason_of(found: Found) -> Reason:
    decision = found.decision
    return decision.code or ReasonCode.INTERNAL_ERROR, (decision.text or "it was not admitted")[:2000]


def _answer(
    found: Found, delivery_id: DeliveryId, run_id: RunId | None, status: DeliveryStatus, reason: Reason | None
) -> Answer:
    code, text = reason or (None, None)
    return Answer(
        status=OUTCOMES[status],
        delivery_id=delivery_id,
        run_id=run_id,
        autopilot_id=found.target.snapshot.autopilot_id,
        trigger_id=found.target.trigger_id,
        reason=text,
        reason_code=code,
    )
