"""Runtimes, as the workspace sees them."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from autopilot.domain.admission import ONLINE_WITHIN
from autopilot.domain.errors import NotFound
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.wire.runtimes import RuntimeView
from autopilot.storage import runtimes
from autopilot.storage.runtimes import Runtime

_ONLINE_WITHIN_S = ONLINE_WITHIN.total_seconds()


async def list_runtimes(call: Call, query: PageQuery) -> Page[RuntimeView]:
    async with call.database.connection() as conn:
        found = await runtimes.list_runtimes(
            conn,
            call.caller.workspace_id,
            online_within_s=_ONLINE_WITHIN_S,
            before=query.before,
            limit=query.fetch,
        )
    return page_of(found, query, lambda runtime: runtime.id, _show)


async def get_runtime(call: Call, runtime_id: UUID) -> RuntimeView:
    async with call.database.connection() as conn:
        found = await runtimes.find_runtime(
            conn, call.caller.workspace_id, runtime_id, online_within_s=_ONLINE_WITHIN_S
        )
    if found is None:
        raise NotFound
    return _show(found)


def _show(runtime: Runtime) -> RuntimeView:
    return RuntimeView(
        id=runtime.id,
        name=runtime.name,
        registered_by=runtime.registered_by,
        concurrency=runtime.concurrency,
        capabilities=runtime.capabilities,
        created_at=runtime.created_at,
        state=_state_of(runtime),
        seen_at=runtime.seen_at,
        detail=runtime.detail,
        repair_hint=runtime.repair_hint,
    )


def _state_of(runtime: Runtime) -> Literal["online", "offline", "unusable"]:
    if not runtime.online:
        return "offline"
    return "online" if runtime.usable else "unusable"


ROUTES = (
    get("/api/runtimes", list_runtimes),
    get("/api/runtimes/{runtime_id}", get_runtime),
)
