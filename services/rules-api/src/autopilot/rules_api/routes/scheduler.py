"""What the scheduler did: owners and admins see it all, who may write a rule that of its triggers (S7.16)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import Forbidden, NotFound
from autopilot.domain.ids import TriggerId
from autopilot.domain.permissions import Action
from autopilot.engine.rule_access import find_rule
from autopilot.kit.http import Problem
from autopilot.rules_api.auth import is_id
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.scheduler import ExecutionQuery, ExecutionView, show_execution
from autopilot.storage import collaborators, execution_views
from autopilot.storage.database import Conn
from autopilot.storage.execution_views import Execution, Place
from autopilot.storage.schedules import JOB_NAME


async def list_executions(call: Call, query: ExecutionQuery) -> Page[ExecutionView]:
    trigger_id = TriggerId(UUID(query.scope)) if query.scope is not None and is_id(query.scope) else None
    async with call.database.connection() as conn:
        sees_all = call.caller.may(Action.AUTOPILOT_WRITE)
        if not sees_all:
            await _require_writer(conn, call, trigger_id)
        before = await _place(conn, query.before) if query.before is not None else None
        found: list[Execution] = []
        if query.job in (None, JOB_NAME) and (query.scope is None or trigger_id is not None):
            found += await execution_views.list_of_triggers(
                conn,
                call.caller.workspace_id,
                trigger_id=trigger_id,
                state=query.status,
                before=before,
                limit=query.fetch,
            )
        if sees_all and trigger_id is None and query.job != JOB_NAME:
            found += await execution_views.list_of_jobs(
                conn,
                job_name=query.job,
                scope_id=query.scope,
                state=query.status,
                before=before,
                limit=query.fetch,
            )
    shown = execution_views.newest(found, query.fetch)
    return page_of(shown, query, lambda execution: execution.id, show_execution)


async def _require_writer(conn: Conn, call: Call, trigger_id: TriggerId | None) -> None:
    if trigger_id is None:
        raise Forbidden(
            "Name as scope a trigger of a rule that you may write; the rest is for owners and admins."
        )
    autopilot_id = await execution_views.find_autopilot(conn, call.caller.workspace_id, trigger_id)
    if autopilot_id is None:
        raise NotFound("There is no such trigger.")
    rule = await find_rule(conn, call.caller.workspace_id, autopilot_id)
    granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
    if not rights_of(rule, granted, call.caller).can_write:
        raise Forbidden(f"You lack the right {Action.AUTOPILOT_WRITE.value} for this.")


async def _place(conn: Conn, execution_id: UUID) -> Place:
    place = await execution_views.find_place(conn, execution_id)
    if place is None:
        raise Problem(400, "bad_cursor", "The list does not reach so far back any more.", field="cursor")
    return place


ROUTES = (get("/api/scheduler/executions", list_executions, right=Action.AUTOPILOT_WRITE),)
