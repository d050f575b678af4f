"""Webhook deliveries over the wire (S9.14); what was sent is for those who may write the rule (S6.5)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, DeliveryId, RunId, TriggerId, UserId
from autopilot.domain.states import DeliveryStatus, ReasonCode, RunStatus
from autopilot.domain.webhook.providers import DedupeSource
from autopilot.domain.webhook.signature import SignatureStatus
from autopilot.rules_api.paging import HistoryQuery
from autopilot.storage.delivery_views import Delivery


class DeliveryQuery(HistoryQuery, frozen=True, kw_only=True):
    """A list of deliveries."""

    trigger: Annotated[UUID | None, msgspec.Meta(description="Only those to this trigger")] = None


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery; `headers` is null for who may not write the rule. `next_attempt_at` and `lease_until` speak of its dispatch."""

    id: DeliveryId
    autopilot_id: AutopilotId
    trigger_id: TriggerId
    provider: str
    event: str
    dedupe_key: str | None
    dedupe_source: DedupeSource | None
    signature_status: SignatureStatus
    status: DeliveryStatus
    attempt_count: int
    headers: dict[str, Any] | None
    content_type: str | None
    response_status: int
    response_body: Any
    run_id: RunId | None
    run_status: RunStatus | None
    error: str | None
    reason_code: ReasonCode | None
    replayed_from: DeliveryId | None
    replayed_by: UserId | None
    received_at: datetime
    last_attempt_at: datetime
    dispatch_attempts: int
    next_attempt_at: datetime | None
    lease_until: datetime | None


class DeliveryDetail(DeliveryView, frozen=True, kw_only=True):
    """One delivery with its body as it was sent: null for who may not see it, and once retention has taken it (`body_expired`)."""

    body: str | None
    body_expired: bool


def show_delivery(delivery: Delivery, *, can_write: bool) -> DeliveryView:
    return DeliveryView(**_common(delivery, can_write))


def show_detail(delivery: Delivery, *, can_write: bool) -> DeliveryDetail:
    body = delivery.body if can_write else None
    return DeliveryDetail(
        **_common(delivery, can_write),
        body=body.decode(errors="replace") if body is not None else None,
        body_expired=delivery.body_expired,
    )


def _common(delivery: Delivery, can_write: bool) -> dict[str, Any]:
    shown = {name: getattr(delivery, name) for name in DeliveryView.__struct_fields__}
    if not can_write:
        shown["headers"] = None
    return shown
