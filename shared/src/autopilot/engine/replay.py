"""A person has a delivery taken once more, as if it came now (S9.11)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from autopilot.domain.errors import Conflict, Gone, NotFound
from autopilot.domain.ids import AutopilotId, DeliveryId, RunId, UserId, WorkspaceId
from autopilot.domain.permissions import Action
from autopilot.domain.states import DeliveryStatus, ReasonCode
from autopilot.engine.rule_access import find_rule, hold_people, require
from autopilot.engine.undecided import settle_undecided
from autopilot.storage import replays, undecided
from autopilot.storage.database import Conn
from autopilot.storage.errors import Contention

_REFUSED = {
    DeliveryStatus.REJECTED: ("delivery_rejected", "nobody proved who sent it"),
    DeliveryStatus.QUEUED: ("delivery_queued", "it is still on its way"),
}
_INACTIVE = {
    ReasonCode.AUTOPILOT_PAUSED: "the autopilot is paused",
    ReasonCode.AUTOPILOT_ARCHIVED: "the autopilot is archived",
    ReasonCode.TRIGGER_DISABLED: "the trigger is disabled or deleted",
}


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. The ids of the new delivery and its run are made once by the caller; `key` is the idempotency key."""

    delivery_id: DeliveryId
    run_id: RunId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    original: UUID
    person: UserId
    key: str | None


async def replay_delivery(conn: Conn, request: ReplayRequest) -> DeliveryId:
    """Replay in the caller's transaction; the id of the new delivery, which an earlier request with the same key may have made.

    It is judged like a new event, but for signature and duplicate: the original passed those. Raises NotFound, Forbidden,
    Conflict (rejected or still queued, or rule or trigger not active) and Gone (retention has taken the body).
    """
    rule = await find_rule(conn, request.workspace_id, request.autopilot_id)
    role = await hold_people(conn, request.workspace_id, request.person)
    await require(conn, rule, request.person, role, Action.AUTOPILOT_WRITE)
    trigger_id = await replays.find_trigger(
        conn, request.workspace_id, request.autopilot_id, request.original
    )
    if trigger_id is None:
        raise NotFound("There is no such delivery.")
    earlier = await _find_earlier(conn, request)
    if earlier is not None:
        return earlier
    await undecided.hold_rules(conn, [rule.id], [trigger_id])
    await _hold_original(conn, request.original)
    outcome = await replays.insert_replay(
        conn, request.delivery_id, request.original, request.person, request.key
    )
    if not outcome.has_body:
        raise Gone("The body of this delivery is no longer kept.", code="delivery_body_expired")
    if not outcome.inserted:
        earlier = await _find_earlier(conn, request)
        if earlier is None:
            raise Contention("the replay of this key was removed meanwhile")
        return earlier
    (settled,) = await settle_undecided(conn, [request.delivery_id], run_id=request.run_id)
    code = settled.reason_code
    if settled.status is DeliveryStatus.IGNORED and code is not None and code in _INACTIVE:
        raise Conflict(f"Not replayed: {_INACTIVE[code]}.", code=code.value)
    return request.delivery_id


async def _hold_original(conn: Conn, original: UUID) -> None:
    status = await replays.hold_original(conn, original)
    if status is None:
        raise NotFound("There is no such delivery.")
    if status in _REFUSED:
        code, why = _REFUSED[status]
        raise Conflict(f"A delivery that is {status} is not replayed: {why}.", code=code)


async def _find_earlier(conn: Conn, request: ReplayRequest) -> DeliveryId | None:
    return await replays.find_replay(conn, request.original, request.key) if request.key is not None else None
