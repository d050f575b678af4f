"""Runtimes, as the workspace sees them; edited by their registrant and admins (S6.8, S11.5)."""

from __future__ import annotations

from functools import partial
from typing import Literal
from uuid import UUID

from autopilot.domain.admission import ONLINE_WITHIN
from autopilot.domain.errors import NotFound
from autopilot.domain.permissions import Action
from autopilot.domain.states import PauseReason
from autopilot.engine.revisions import check_rev
from autopilot.engine.system_edits import pause_dependents
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.endpoint import Call, delete, get, patch
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.runtimes import RuntimePatch, RuntimeView
from autopilot.storage import runtimes
from autopilot.storage.database import Conn
from autopilot.storage.runtimes import Runtime

_ONLINE_WITHIN_S = ONLINE_WITHIN.total_seconds()


async def list_runtimes(call: Call, query: PageQuery) -> Page[RuntimeView]:
    """Newest first."""
    async with call.database.connection() as conn:
        found = await runtimes.list_runtimes(
            conn,
            call.caller.workspace_id,
            online_within_s=_ONLINE_WITHIN_S,
            before=query.before,
            limit=query.fetch,
        )
    return page_of(found, query, lambda runtime: runtime.id, partial(_show, caller=call.caller))


async def get_runtime(call: Call, runtime_id: UUID) -> RuntimeView:
    """Its state is judged by its last sign of life."""
    async with call.database.connection() as conn:
        return _show(await _find(conn, call.caller, runtime_id), call.caller)


async def update_runtime(call: Call, runtime_id: UUID, body: RuntimePatch) -> RuntimeView:
    """Tasks that it holds beyond a new limit go on; it gets no further ones."""
    expected_rev = expected_version(call, body.version)

    async def edit(conn: Conn) -> RuntimeView:
        runtime = await _find_to_edit(conn, call.caller, runtime_id)
        check_rev(runtime.rev, expected_rev)
        await runtimes.update_runtime(
            conn,
            runtime.id,
            name=sent(body.name, runtime.name),
            concurrency_limit=sent(body.concurrency_limit, runtime.concurrency_limit),
        )
        return _show(await _find(conn, call.caller, runtime_id), call.caller)

    return await call.database.transact(edit)


async def delete_runtime(call: Call, runtime_id: UUID) -> None:
    """Unbinds its agents and pauses the rules that depend on them (S11.5); tasks that it holds are recovered when their leases end."""
    caller, expected_rev = call.caller, expected_version(call)

    async def remove(conn: Conn) -> None:
        runtime = await _find_to_edit(conn, caller, runtime_id)
        check_rev(runtime.rev, expected_rev)
        unbound = await runtimes.delete_runtime(conn, caller.workspace_id, runtime.id)
        await pause_dependents(conn, caller.workspace_id, PauseReason.AGENT_RUNTIME_REQUIRED, agents=unbound)

    await call.database.transact(remove)


async def _find_to_edit(conn: Conn, caller: Caller, runtime_id: UUID) -> Runtime:
    await runtimes.lock_runtime(conn, caller.workspace_id, runtime_id)
    runtime = await _find(conn, caller, runtime_id)
    caller.require(Action.RUNTIME_EDIT, is_creator=_registered(runtime, caller))
    return runtime


async def _find(conn: Conn, caller: Caller, runtime_id: UUID) -> Runtime:
    found = await runtimes.find_runtime(
        conn, caller.workspace_id, runtime_id, online_within_s=_ONLINE_WITHIN_S
    )
    if found is None:
        raise NotFound
    return found


def _registered(runtime: Runtime, caller: Caller) -> bool:
    return runtime.registered_by is not None and runtime.registered_by == caller.user_id


def _show(runtime: Runtime, caller: Caller) -> RuntimeView:
    return RuntimeView(
        id=runtime.id,
        name=runtime.name,
        registered_by=runtime.registered_by,
        concurrency=runtime.concurrency,
        concurrency_limit=runtime.concurrency_limit,
        capabilities=runtime.capabilities,
        created_at=runtime.created_at,
        version=runtime.rev,
        state=_state_of(runtime),
        seen_at=runtime.seen_at,
        detail=runtime.detail,
        repair_hint=runtime.repair_hint,
        can_edit=caller.may(Action.RUNTIME_EDIT, is_creator=_registered(runtime, caller)),
    )


def _state_of(runtime: Runtime) -> Literal["online", "offline", "unusable"]:
    if not runtime.online:
        return "offline"
    return "online" if runtime.usable else "unusable"


_RUNTIME = "/api/runtimes/{runtime_id}"

ROUTES = (
    get("/api/runtimes", list_runtimes),
    get(_RUNTIME, get_runtime),
    patch(_RUNTIME, update_runtime, right=Action.RUNTIME_EDIT, refusals=(Code.NAME_TAKEN,)),
    delete(_RUNTIME, delete_runtime, right=Action.RUNTIME_EDIT, versioned=True),
)
