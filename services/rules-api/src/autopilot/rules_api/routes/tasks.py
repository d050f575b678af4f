"""Tasks: listed, looked at, cancelled by any member (S6.8, S11.7)."""

from __future__ import annotations

from uuid import UUID

from autopilot.bus.subjects import wake_dispatch, wake_runtime
from autopilot.domain.errors import Forbidden
from autopilot.domain.ids import RuntimeId, TaskId
from autopilot.domain.permissions import Action
from autopilot.engine import finish
from autopilot.engine.finish import Ended, NoSuchTask
from autopilot.engine.rule_access import find_rule
from autopilot.rules_api.endpoint import Call, get, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.problems import Code
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.tasks import (
    OutputPiece,
    OutputQuery,
    TaskOutput,
    TaskQuery,
    TaskView,
    show_task,
)
from autopilot.storage import collaborators, task_output, tasks
from autopilot.storage.database import Conn

# A piece is 64 KiB at most; a page stays below half a mebibyte.
_OUTPUT_PIECES = 8


async def list_tasks(call: Call, query: TaskQuery) -> Page[TaskView]:
    async with call.database.connection() as conn:
        found = await tasks.list_tasks(
            conn,
            call.caller.workspace_id,
            before=query.before,
            status=query.status,
            agent_id=query.agent,
            issue_id=query.issue,
            limit=query.fetch,
        )
    return page_of(found, query, lambda task: task.id, show_task)


async def get_task(call: Call, task_id: UUID) -> TaskView:
    async with call.database.connection() as conn:
        found = await tasks.find_task(conn, call.caller.workspace_id, task_id)
    if found is None:
        raise NoSuchTask
    return show_task(found)


async def get_output(call: Call, task_id: UUID, query: OutputQuery) -> TaskOutput:
    """An issue is public, and so is what was printed for it; that of a bare run is for those who may see its payload (S6.5)."""
    async with call.database.connection() as conn:
        task = await tasks.find_task(conn, call.caller.workspace_id, task_id)
        if task is None:
            raise NoSuchTask
        if task.issue_id is None and task.autopilot_id is not None:
            rule = await find_rule(conn, task.workspace_id, task.autopilot_id)
            granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
            if not rights_of(rule, granted, call.caller).can_write:
                raise Forbidden("Only who may write the autopilot sees what its run printed.")
        attempt = query.attempt or task.attempt
        found = await task_output.list_output(
            conn, task.id, attempt, place=query.place, limit=_OUTPUT_PIECES + 1
        )
    shown = found[:_OUTPUT_PIECES]
    return TaskOutput(
        attempt=attempt,
        status=task.status,
        pieces=[OutputPiece(place=p.place, text=p.text, created_at=p.created_at) for p in shown],
        next_place=shown[-1].place + len(shown[-1].text) if shown else query.place,
        more=len(found) > len(shown),
    )


async def cancel_task(call: Call, task_id: UUID) -> TaskView:
    """A live task ends; one that has ended is shown as it is."""
    call.caller.require(Action.TASK_CANCEL)

    async def cancel(conn: Conn) -> tuple[Ended, RuntimeId | None]:
        if not await tasks.is_here(conn, call.caller.workspace_id, TaskId(task_id)):
            raise NoSuchTask
        return await finish.cancel_task(conn, TaskId(task_id))

    ended, runtime_id = await call.database.transact(cancel)
    if ended.released:
        call.deps.bus.wake(wake_dispatch)
    if runtime_id is not None:
        call.deps.bus.wake(wake_runtime(runtime_id))
    return await get_task(call, task_id)


ROUTES = (
    get("/api/tasks", list_tasks),
    get("/api/tasks/{task_id}", get_task),
    get("/api/tasks/{task_id}/output", get_output, refusals=(Code.FORBIDDEN,)),
    post("/api/tasks/{task_id}/cancel", cancel_task, status=200, right=Action.TASK_CANCEL),
)
