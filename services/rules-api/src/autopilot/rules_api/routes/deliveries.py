"""Webhook deliveries of a rule: what was received, what became of it, and taking one again (S9.11, S9.14, S9.15)."""

from __future__ import annotations

from uuid import UUID

from autopilot.bus.subjects import wake_dispatch
from autopilot.domain.errors import NotFound
from autopilot.domain.ids import AutopilotId, DeliveryId, RunId
from autopilot.domain.permissions import Action
from autopilot.engine import replay as engine
from autopilot.engine.replay import ReplayRequest
from autopilot.engine.rule_access import find_rule
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import IDEMPOTENCY_KEY, Call, get, post
from autopilot.rules_api.idempotency import read_key
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.problems import Code
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.deliveries import (
    DeliveryDetail,
    DeliveryQuery,
    DeliveryView,
    show_delivery,
    show_detail,
)
from autopilot.storage import collaborators, delivery_views
from autopilot.storage.database import Conn
from autopilot.storage.delivery_views import Delivery


async def list_deliveries(call: Call, autopilot_id: UUID, query: DeliveryQuery) -> Page[DeliveryView]:
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
        found = await delivery_views.list_deliveries(
            conn,
            rule.workspace_id,
            rule.id,
            before=query.before,
            trigger_id=query.trigger,
            offset=query.skip,
            limit=query.fetch,
        )
    can_write = rights_of(rule, granted, call.caller).can_write
    return page_of(
        found,
        query,
        lambda delivery: delivery.id,
        lambda delivery: show_delivery(delivery, can_write=can_write),
    )


async def get_delivery(call: Call, autopilot_id: UUID, delivery_id: UUID) -> DeliveryDetail:
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
        found = await delivery_views.find_delivery(conn, rule.workspace_id, rule.id, delivery_id)
    if found is None:
        raise NotFound("There is no such delivery.")
    return show_detail(found, can_write=rights_of(rule, granted, call.caller).can_write)


async def replay_delivery(call: Call, autopilot_id: UUID, delivery_id: UUID) -> DeliveryView:
    """Take a delivery once more, as if it came now: acts for real.

    The answer is the new delivery; the original stays as it is. Whether it starts a run is judged as for any event:
    a run may be skipped, and the delivery ignored by the trigger's filters.
    """
    request = ReplayRequest(
        delivery_id=DeliveryId(uuid7()),
        run_id=RunId(uuid7()),
        workspace_id=call.caller.workspace_id,
        autopilot_id=AutopilotId(autopilot_id),
        original=delivery_id,
        person=call.caller.person,
        key=read_key(call.request),
    )

    async def replay(conn: Conn) -> Delivery | None:
        replay_id = await engine.replay_delivery(conn, request)
        return await delivery_views.find_delivery(conn, request.workspace_id, request.autopilot_id, replay_id)

    found = await call.database.transact(replay)
    if found is None:
        raise NotFound("The replay was removed meanwhile.")
    call.deps.bus.wake(wake_dispatch)
    return show_delivery(found, can_write=True)


_DELIVERIES = "/api/autopilots/{autopilot_id}/deliveries"

ROUTES = (
    get(_DELIVERIES, list_deliveries),
    get(_DELIVERIES + "/{delivery_id}", get_delivery),
    post(
        _DELIVERIES + "/{delivery_id}/replay",
        replay_delivery,
        status=202,
        right=Action.AUTOPILOT_WRITE,
        refusals=(
            Code.DELIVERY_REJECTED,
            Code.DELIVERY_QUEUED,
            Code.TRIGGER_DISABLED,
            Code.AUTOPILOT_PAUSED,
            Code.AUTOPILOT_ARCHIVED,
            Code.DELIVERY_BODY_EXPIRED,
        ),
        headers=(IDEMPOTENCY_KEY,),
    ),
)
