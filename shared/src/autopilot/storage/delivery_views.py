"""Webhook deliveries as they are shown (S9.14); how they are born is written in `deliveries`."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId, DeliveryId, RunId, TriggerId, UserId, WorkspaceId
from autopilot.domain.states import DeliveryStatus, ReasonCode, RunStatus
from autopilot.domain.webhook.providers import DedupeSource
from autopilot.domain.webhook.signature import SignatureStatus
from autopilot.storage import queries
from autopilot.storage.bodies import body_of
from autopilot.storage.database import Conn

SQL = queries.load("delivery_views")


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery with its place in the queue; `body` is None in lists, and where retention has taken it (`body_expired`)."""

    id: DeliveryId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    trigger_id: TriggerId
    provider: str
    event: str
    dedupe_key: str | None
    dedupe_source: DedupeSource | None
    signature_status: SignatureStatus
    status: DeliveryStatus
    attempt_count: int
    headers: dict[str, Any]
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
    body: bytes | None
    body_expired: bool


async def find_delivery(
    conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId, delivery_id: UUID
) -> Delivery | None:
    """One delivery of this rule, with its body."""
    row = await conn.fetchrow(SQL["find_delivery"], workspace_id, autopilot_id, delivery_id)
    return msgspec.convert(dict(row) | {"body": body_of(row)}, Delivery) if row is not None else None


async def list_deliveries(
    conn: Conn,
    workspace_id: WorkspaceId,
    autopilot_id: AutopilotId,
    *,
    before: UUID | None,
    trigger_id: UUID | None,
    offset: int,
    limit: int,
) -> list[Delivery]:
    """A rule's deliveries, newest first, of one trigger if asked for."""
    rows = await conn.fetch(
        SQL["list_deliveries"], workspace_id, autopilot_id, before, trigger_id, limit, offset
    )
    return [msgspec.convert(dict(row), Delivery) for row in rows]
