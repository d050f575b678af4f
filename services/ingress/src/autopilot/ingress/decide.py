"""The pure part of taking a webhook: from a request and its trigger to the delivery that is written (S9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

import msgspec

from autopilot.domain.ids import DeliveryId, RunId
from autopilot.domain.states import DeliveryStatus, ReasonCode
from autopilot.domain.webhook import providers, signature, tokens
from autopilot.domain.webhook.envelope import ParsedBody, handshake_answer, read_event
from autopilot.domain.webhook.signature import Proof, SignatureStatus, Signed
from autopilot.domain.webhook.verdict import judge
from autopilot.ingress.answers import Answer, encode
from autopilot.ingress.lookup import Found
from autopilot.storage.deliveries import NewDelivery

Reason = tuple[ReasonCode, str]
Outcome = Literal["accepted", "queued", "skipped", "ignored", "rejected"]

_BORN: dict[Outcome, tuple[DeliveryStatus, int]] = {
    "accepted": (DeliveryStatus.QUEUED, 200),
    "queued": (DeliveryStatus.QUEUED, 202),
    "skipped": (DeliveryStatus.DISPATCHED, 200),
    "ignored": (DeliveryStatus.IGNORED, 200),
    "rejected": (DeliveryStatus.REJECTED, 401),
}
"""The status that a delivery with an outcome is born with, and that of the answer (S9.8, S9.15)."""

_UNSIGNED: dict[SignatureStatus, ReasonCode] = {
    SignatureStatus.MISSING: ReasonCode.MISSING_SIGNATURE,
    SignatureStatus.INVALID: ReasonCode.INVALID_SIGNATURE,
}


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request with its body read. The ids are made once, so that a retry after a lost answer finds itself."""

    delivery_id: DeliveryId
    run_id: RunId
    headers: Mapping[str, str]
    raw: bytes
    body: ParsedBody

    def __repr__(self) -> str:
        return f"Received({self.delivery_id})"


def outcome_of(new: NewDelivery) -> Outcome:
    """What the sender is told of a delivery that was written as decided."""
    match new.status:
        case DeliveryStatus.REJECTED:
            return "rejected"
        case DeliveryStatus.IGNORED:
            return "ignored"
        case DeliveryStatus.QUEUED if new.run_id is None:
            return "queued"
        case DeliveryStatus.QUEUED:
            return "accepted"
        case _:
            return "skipped"


def decide(found: Found, received: Received) -> NewDelivery:
    """Judge a request, first hit first: signature, ping, trigger, autopilot, filter, admission. BadBody for bad headers.

    Whether it is a duplicate comes between signature and ping; that only the write can tell. Where the look-up could
    not decide on admission, nothing behind the ping is judged: the dispatcher does it, once (S9.10).
    """
    provider, headers = found.provider, received.headers
    key, key_source = providers.dedupe_key(provider, headers, received.body.head) or (None, None)
    event = read_event(provider, headers, received.body.head)
    request = Signed(headers=headers, raw=received.raw, head=received.body.head)
    proof = signature.verify(provider, found.secrets, request, found.target.read_at)
    kept = tokens.stored_headers(headers)
    outcome, reason = _judge(found, received, event, proof)
    status, response_status = _BORN[outcome]
    code, text = reason or (None, None)
    decision = found.decision if outcome in ("accepted", "skipped") else None
    run_id = received.run_id if decision is not None else None
    attribution = decision.attribution if decision is not None else None
    target = found.target
    snapshot = target.snapshot if found.decision is not None else None
    answer = Answer(
        status=outcome,
        delivery_id=received.delivery_id,
        run_id=run_id,
        autopilot_id=target.autopilot_id,
        trigger_id=target.trigger_id,
        reason=text,
        reason_code=code,
    )
    echo = handshake_answer(provider, event, received.body.head) if outcome == "ignored" else None
    return NewDelivery(
        id=received.delivery_id,
        trigger_id=target.trigger_id,
        trigger_rev=target.trigger_rev,
        autopilot_rev=snapshot.autopilot_rev if snapshot is not None else None,
        event=event,
        dedupe_key=key,
        dedupe_source=key_source,
        body_sha=sha256(received.raw).digest() if key_source == "idempotency_key" else None,
        signature_status=proof.status,
        status=status,
        headers=encode(kept),
        content_type=kept.get("Content-Type"),
        body=received.raw,
        response_status=response_status,
        response_body=encode(echo or answer),
        reason_code=code,
        reason=text,
        run_id=run_id,
        agent_id=decision.agent_id if decision is not None else None,
        accountable_id=attribution.accountable if attribution is not None else None,
        attribution_source=attribution.source if attribution is not None else None,
    )


def _judge(found: Found, received: Received, event: str, proof: Proof) -> tuple[Outcome, Reason | None]:
    if proof.status in _UNSIGNED:
        return "rejected", (_UNSIGNED[proof.status], proof.flaw)
    verdict = judge(
        found.target.snapshot,
        found.decision,
        wanted=found.filters,
        provider=found.provider,
        event=event,
        head=received.body.head,
    )
    if verdict.code is None or verdict.text is None:
        return verdict.outcome, None
    return verdict.outcome, (verdict.code, verdict.text)
