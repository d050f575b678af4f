"""Tasks: listed, looked at, cancelled by any member (S6.8, S11.7)."""

from __future__ import annotations

from uuid import UUID

from autopilot.bus.subjects import wake_dispatch, wake_runtime
from autopilot.domain.ids import RuntimeId, TaskId
from autopilot.domain.permissions import Action
from autopilot.engine import finish
from autopilot.engine.finish import Ended, NoSuchTask
from autopilot.rules_api.endpoint import Call, get, post
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.wire.tasks import TaskQuery, TaskView, show_task
from autopilot.storage import tasks
from autopilot.storage.database import Conn


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
    post("/api/tasks/{task_id}/cancel", cancel_task, status=200, right=Action.TASK_CANCEL),
)
