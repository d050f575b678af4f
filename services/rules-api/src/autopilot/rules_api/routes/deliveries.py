"""Webhook deliveries of a rule: what was received, what was answered, what became of it (S9.14, S9.15)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import AutopilotId
from autopilot.engine.rule_access import find_rule
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.deliveries import (
    DeliveryDetail,
    DeliveryQuery,
    DeliveryView,
    show_delivery,
    show_detail,
)
from autopilot.storage import collaborators, delivery_views


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


_DELIVERIES = "/api/autopilots/{autopilot_id}/deliveries"

ROUTES = (
    get(_DELIVERIES, list_deliveries),
    get(_DELIVERIES + "/{delivery_id}", get_delivery),
)
