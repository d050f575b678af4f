"""Deciding on deliveries that were kept undecided, with trigger, rule, filters and ownership as they are now (S9.10)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from autopilot.domain.admission import Actor, Decision, Snapshot, admit
from autopilot.domain.errors import AutopilotError
from autopilot.domain.ids import DeliveryId, RunId
from autopilot.domain.states import DeliveryStatus, ReasonCode, Source
from autopilot.domain.webhook import providers
from autopilot.domain.webhook.body import parse_body
from autopilot.domain.webhook.verdict import judge
from autopilot.kit import points
from autopilot.kit.ids import uuid7
from autopilot.storage import facts, undecided
from autopilot.storage.database import Conn
from autopilot.storage.undecided import Settlement, Undecided

_WEBHOOK = Actor(source=Source.WEBHOOK)
_STATUS = {
    "accepted": DeliveryStatus.QUEUED,
    "skipped": DeliveryStatus.DISPATCHED,
    "ignored": DeliveryStatus.IGNORED,
}


class BodyMissing(AutopilotError):
    """The body of the delivery is gone, so that nobody can decide on it."""


async def settle_undecided(
    conn: Conn, ids: Collection[DeliveryId], *, run_id: RunId | None = None
) -> list[Settlement]:
    """Decide on deliveries and write what becomes of them, in the caller's transaction.

    The caller holds their rules and triggers (`storage.undecided.hold_rules`). Deliveries that somebody else has decided
    on are left out. `run_id` is for a caller who made the id of the one run beforehand.
    """
    found = await undecided.load(conn, ids)
    if not found:
        return []
    snapshots = await facts.load_snapshots(conn, [(one.autopilot_id, one.trigger_id) for one in found])
    now = await facts.database_now(conn)
    decided = [
        _settlement(one, snapshots.get((one.autopilot_id, one.trigger_id)), now, run_id or RunId(uuid7()))
        for one in found
    ]
    written = await undecided.settle(conn, decided)
    return [settlement for settlement in decided if settlement.id in written]


def _settlement(delivery: Undecided, snapshot: Snapshot | None, now: datetime, run_id: RunId) -> Settlement:
    points.hit_sync("admissions.decide")
    if snapshot is None or snapshot.workspace_id != delivery.workspace_id:
        return Settlement(
            id=delivery.id, status=DeliveryStatus.IGNORED, reason_code=ReasonCode.TRIGGER_DISABLED
        )
    if delivery.body is None:
        raise BodyMissing
    decision = admit(snapshot, _WEBHOOK, now)
    verdict = judge(
        snapshot,
        decision,
        wanted=delivery.event_filters,
        provider=providers.get(delivery.provider),
        event=delivery.event,
        head=parse_body(delivery.body, delivery.content_type).head,
    )
    if verdict.outcome not in ("accepted", "skipped"):
        return Settlement(id=delivery.id, status=_STATUS[verdict.outcome], reason_code=verdict.code)
    return _with_run(delivery, snapshot, decision, run_id, _STATUS[verdict.outcome])


def _with_run(
    delivery: Undecided, snapshot: Snapshot, decision: Decision, run_id: RunId, status: DeliveryStatus
) -> Settlement:
    attribution = decision.attribution
    return Settlement(
        id=delivery.id,
        status=status,
        reason_code=decision.code,
        reason=decision.text[:2000] if decision.text is not None else None,
        run_id=run_id,
        execution_mode=snapshot.execution_mode,
        rule_version_id=snapshot.rule_version_id,
        rule_version=snapshot.rule_version,
        squad_id=snapshot.squad_id,
        agent_id=decision.agent_id,
        accountable_id=attribution.accountable if attribution is not None else None,
        attribution_source=attribution.source if attribution is not None else None,
    )
