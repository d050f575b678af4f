"""The runtime protocol: register, beat, claim by long poll, renew, report (S11.3, S11.7). All of it may be repeated."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import msgspec

from autopilot.bus.subjects import wake_dispatch
from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import LeaseToken, RuntimeId, TaskId
from autopilot.domain.permissions import Action
from autopilot.domain.states import FailureKind, TaskStatus
from autopilot.engine import finish
from autopilot.engine.claims import (
    HEARTBEAT_S,
    LEASE_S,
    POLL_S,
    RENEW_S,
    TIMEOUT_GRACE_S,
    NoSuchRuntime,
    claim_tasks,
)
from autopilot.engine.finish import Ended, LeaseLost, NoSuchTask
from autopilot.kit.connections import has_hung_up
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import Call, post
from autopilot.rules_api.problems import Code
from autopilot.rules_api.waiting import WAITING
from autopilot.rules_api.wire.runtime import (
    MAX_CAPABILITIES_BYTES,
    MAX_OUTCOME_BYTES,
    MAX_OUTPUT_BYTES,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Heard,
    Heartbeat,
    Lease,
    Named,
    Outcome,
    Output,
    Register,
    Registered,
    Renew,
    RenewedTask,
    RenewedTasks,
    Started,
    lease_of,
)
from autopilot.storage import runtime_protocol, task_output, tasks
from autopilot.storage.database import Conn
from autopilot.storage.runtime_protocol import Claim, RegisteredRuntime, Renewal, Renewed


async def register(call: Call, body: Register) -> Registered:
    """The runtime of this name is new or found again; it counts as heard of, and as usable."""
    caller = call.caller
    if len(msgspec.json.encode(body.capabilities)) > MAX_CAPABILITIES_BYTES:
        raise InvalidValue("capabilities", f"capabilities: at most {MAX_CAPABILITIES_BYTES} bytes of JSON.")

    async def save(conn: Conn) -> RegisteredRuntime:
        runtime = await runtime_protocol.register_runtime(
            conn,
            caller.workspace_id,
            runtime_id=RuntimeId(uuid7()),
            name=body.name,
            registered_by=caller.created_by,
            token_id=caller.token_id,
            concurrency=body.concurrency,
            capabilities=body.capabilities,
        )
        await runtime_protocol.beat(
            conn, caller.workspace_id, runtime.id, usable=True, detail=None, repair_hint=None
        )
        return runtime

    registered = await call.database.transact(save)
    return Registered(
        runtime_id=registered.id,
        name=registered.name,
        workspace_id=caller.workspace_id,
        concurrency=registered.concurrency,
        heartbeat_s=HEARTBEAT_S,
        lease_s=LEASE_S,
        renew_s=RENEW_S,
        poll_s=POLL_S,
    )


async def heartbeat(call: Call, body: Heartbeat) -> Heard:
    async with call.database.connection() as conn:
        found = await runtime_protocol.beat(
            conn,
            call.caller.workspace_id,
            body.runtime_id,
            usable=body.usable,
            detail=body.detail,
            repair_hint=body.repair_hint,
        )
    if not found:
        raise NoSuchRuntime
    return Heard(runtime_id=body.runtime_id)


async def leave(call: Call, body: Named) -> Heard:
    """The runtime goes away in order: it is offline at once."""
    async with call.database.connection() as conn:
        await runtime_protocol.forget(conn, call.caller.workspace_id, body.runtime_id)
    return Heard(runtime_id=body.runtime_id)


async def claim(call: Call, body: ClaimRequest) -> Claimed:
    """Answer with tasks as soon as there are any, or with none when the wait ends."""
    deadline = asyncio.get_running_loop().time() + body.wait_s
    with call.request.app[WAITING].tasks.waiting(RuntimeId(body.runtime_id)) as waiter:
        turn: LeaseToken | None = None
        while True:
            found = await _claim(call, body, turn)
            turn = found.turn
            if found.tasks or not await waiter.news(deadline) or has_hung_up(call.request):
                return Claimed(tasks=found.tasks)


async def start(call: Call, task_id: UUID, body: Lease) -> Started:
    """Claimed to running. From here on the task's time runs, and a lost lease counts as an attempt."""
    async with call.database.transaction() as conn:
        await _require_here(conn, call, task_id)
        started = await runtime_protocol.start_task(
            conn, TaskId(task_id), lease_of(body), lease_s=LEASE_S, grace_s=TIMEOUT_GRACE_S
        )
    if not started:
        raise LeaseLost
    return Started()


async def renew(call: Call, body: Renew) -> RenewedTasks:
    """One call for all that the runtime holds (HAZARDS 15)."""
    renewals = {
        task.id: Renewal(id=TaskId(task.id), lease_token=lease_of(task), progress=task.progress)
        for task in body.tasks
    }

    async def save(conn: Conn) -> dict[TaskId, Renewed]:
        if await runtime_protocol.touch(conn, call.caller.workspace_id, body.runtime_id) is None:
            raise NoSuchRuntime
        return await runtime_protocol.renew_tasks(
            conn,
            RuntimeId(body.runtime_id),
            list(renewals.values()),
            lease_s=LEASE_S,
            grace_s=TIMEOUT_GRACE_S,
        )

    renewed = await call.database.transact(save)
    return RenewedTasks(
        tasks=[_renewed(TaskId(task.id), renewed.get(TaskId(task.id))) for task in body.tasks]
    )


async def add_output(call: Call, task_id: UUID, body: Output) -> Started:
    """For people who look while the program runs. The same piece again changes nothing."""
    if len(body.text.encode()) > MAX_OUTPUT_BYTES:
        raise InvalidValue("text", f"text: at most {MAX_OUTPUT_BYTES} bytes of UTF-8.")
    async with call.database.transaction() as conn:
        await _require_here(conn, call, task_id)
        kept = await task_output.add_output(conn, TaskId(task_id), lease_of(body), body.place, body.text)
    if not kept:
        raise LeaseLost
    return Started()


async def complete(call: Call, task_id: UUID, body: Complete) -> Outcome:
    if len(body.result.encode()) > MAX_OUTCOME_BYTES:
        raise InvalidValue("result", f"result: at most {MAX_OUTCOME_BYTES} bytes of UTF-8.")

    async def end(conn: Conn) -> Ended:
        await _require_here(conn, call, task_id)
        return await finish.complete_task(conn, TaskId(task_id), lease_of(body), body.result)

    return _outcome(call, await call.database.transact(end))


async def fail(call: Call, task_id: UUID, body: Fail) -> Outcome:
    if len(body.error.encode()) > MAX_OUTCOME_BYTES:
        raise InvalidValue("error", f"error: at most {MAX_OUTCOME_BYTES} bytes of UTF-8.")

    async def end(conn: Conn) -> Ended:
        await _require_here(conn, call, task_id)
        return await finish.fail_task(
            conn, TaskId(task_id), lease_of(body), body.error, FailureKind(body.kind)
        )

    return _outcome(call, await call.database.transact(end))


async def _claim(call: Call, body: ClaimRequest, turn: LeaseToken | None) -> Claim:
    found = await claim_tasks(
        call.database, call.caller.workspace_id, body.runtime_id, body.claim_id, limit=body.limit, turn=turn
    )
    for task_id in found.misfits:
        _outcome(call, await call.database.transact(partial(finish.refuse_task, task_id=task_id)))
    return found


async def _require_here(conn: Conn, call: Call, task_id: UUID) -> None:
    if not await tasks.is_here(conn, call.caller.workspace_id, TaskId(task_id)):
        raise NoSuchTask


def _renewed(task_id: TaskId, renewed: Renewed | None) -> RenewedTask:
    if renewed is None:
        return RenewedTask(id=task_id, state="lost", lease_until=None)
    if renewed.status is TaskStatus.CANCELLED:
        return RenewedTask(id=task_id, state="cancelled", lease_until=None)
    return RenewedTask(id=task_id, state="ok" if renewed.alive else "lost", lease_until=renewed.lease_until)


def _outcome(call: Call, ended: Ended) -> Outcome:
    if ended.released:
        call.deps.bus.wake(wake_dispatch)
    return Outcome(status=ended.status, changed=ended.changed, retry=ended.retry)


_TASK = "/api/runtime/tasks/{task_id}"

ROUTES = (
    post(
        "/api/runtime/register",
        register,
        status=200,
        right=Action.RUNTIME_SERVE,
        refusals=(Code.NAME_TAKEN,),
    ),
    post("/api/runtime/heartbeat", heartbeat, status=200, right=Action.RUNTIME_SERVE),
    post("/api/runtime/bye", leave, status=200, right=Action.RUNTIME_SERVE),
    post("/api/runtime/claim", claim, status=200, right=Action.RUNTIME_SERVE),
    post("/api/runtime/renew", renew, status=200, right=Action.RUNTIME_SERVE),
    post(_TASK + "/start", start, status=200, right=Action.RUNTIME_SERVE, refusals=(Code.LEASE_LOST,)),
    post(_TASK + "/output", add_output, status=200, right=Action.RUNTIME_SERVE, refusals=(Code.LEASE_LOST,)),
    post(_TASK + "/complete", complete, status=200, right=Action.RUNTIME_SERVE, refusals=(Code.LEASE_LOST,)),
    post(_TASK + "/fail", fail, status=200, right=Action.RUNTIME_SERVE, refusals=(Code.LEASE_LOST,)),
)
