"""How work ends (S11.1, S11.2, S11.6): by fact, in the transaction that changes the fact, locked top-down.

Every function takes the caller's transaction, which must hold nothing below level 2 of the lock order.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from autopilot.domain.errors import Conflict, NotFound
from autopilot.domain.ids import AutopilotId, IssueId, LeaseToken, RunId, RuntimeId, TaskId, WorkspaceId
from autopilot.domain.states import (
    ISSUE_CLOSED,
    TASK_ACTIVE,
    FailureKind,
    IssueStatus,
    ReasonCode,
    RunStatus,
    TaskStatus,
)
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.kit.ids import uuid7
from autopilot.storage import endings
from autopilot.storage.database import Conn
from autopilot.storage.endings import LockedTask, TaskLinks

RETRY_AFTER = (timedelta(seconds=10), timedelta(seconds=60))
CLAIM_LIMIT = 5
REASON_LIMIT = 2000
ERROR_LIMIT = 4000
_INFRASTRUCTURE = frozenset({FailureKind.TIMEOUT, FailureKind.RUNTIME_LOST})
_WAITING = frozenset({IssueStatus.TODO, IssueStatus.IN_PROGRESS})
_RUN_BY_ISSUE: dict[IssueStatus, tuple[RunStatus, ReasonCode | None, str | None]] = {
    IssueStatus.DONE: (RunStatus.COMPLETED, None, None),
    IssueStatus.IN_REVIEW: (RunStatus.COMPLETED, None, None),
    IssueStatus.CANCELLED: (RunStatus.FAILED, ReasonCode.ISSUE_CANCELLED, "the issue was cancelled"),
    IssueStatus.BLOCKED: (RunStatus.FAILED, ReasonCode.ISSUE_BLOCKED, "the issue was blocked"),
}


class NoSuchTask(NotFound):
    """There is no such task here."""


class NoSuchIssue(NotFound):
    """There is no such issue here."""


class LeaseLost(Conflict):
    """The task is no longer held by this lease."""

    def __init__(self) -> None:
        super().__init__(code="lease_lost")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is now. `changed` is false when it had ended before; `retry` says that it waits in the queue again.

    `released`: the caller wakes the dispatcher after commit, since a parked run was let go.
    """

    status: TaskStatus
    changed: bool
    retry: bool = False
    released: bool = False


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What an issue's new state did: the runtimes whose tasks were cancelled, and whether a parked run was let go."""

    cancelled_on: frozenset[RuntimeId] = frozenset()
    released: bool = False


async def complete_task(conn: Conn, task_id: TaskId, lease: LeaseToken, result: str) -> Ended:
    """The agent is done. Raises NoSuchTask, LeaseLost; the same lease again gets the stored outcome (HAZARDS 15)."""
    links, task = await _lock_held(conn, task_id, lease)
    if task.status not in TASK_ACTIVE:
        return Ended(status=task.status, changed=False)
    await endings.end_task(conn, task_id, TaskStatus.COMPLETED, result=result)
    if links.issue_id is not None:
        await _review(conn, links, links.issue_id, result)
    elif links.run_id is not None:
        await endings.finish_run(conn, links.run_id, RunStatus.COMPLETED, result=result)
    return Ended(status=TaskStatus.COMPLETED, changed=True, released=await _release(conn, links.autopilot_id))


async def fail_task(conn: Conn, task_id: TaskId, lease: LeaseToken, error: str, kind: FailureKind) -> Ended:
    """The agent failed, or its runtime says that it timed out. Raises NoSuchTask, LeaseLost; repeatable like complete_task."""
    links, task = await _lock_held(conn, task_id, lease)
    if task.status not in TASK_ACTIVE:
        return Ended(status=task.status, changed=False)
    return await _fail(conn, links, task, error, kind)


async def lose_task(conn: Conn, task_id: TaskId, error: str, kind: FailureKind) -> Ended:
    """A sweep found a held task whose lease ran out; it looked without a lock, so that is proved again here.

    A task claimed but never started goes back to the queue with its attempt unchanged, CLAIM_LIMIT times at most.
    """
    links = await _links(conn, task_id)
    task = await _lock_down(conn, links)
    if task.status not in (TaskStatus.CLAIMED, TaskStatus.RUNNING) or not await endings.lease_is_over(
        conn, task_id
    ):
        return Ended(status=task.status, changed=False)
    if task.status is TaskStatus.CLAIMED and task.claims < CLAIM_LIMIT:
        await endings.unclaim_task(conn, task_id)
        return Ended(status=TaskStatus.QUEUED, changed=True, retry=True)
    return await _fail(conn, links, task, error, kind)


async def expire_task(conn: Conn, task_id: TaskId) -> Ended:
    """A queued task of a bare run that nobody claimed in time (S11.3)."""
    links = await _links(conn, task_id)
    task = await _lock_down(conn, links)
    if task.status is not TaskStatus.QUEUED:
        return Ended(status=task.status, changed=False)
    text = "no runtime claimed the task in time"
    await endings.end_task(conn, task_id, TaskStatus.EXPIRED, error=text, kind=FailureKind.EXPIRED)
    await _fail_run(conn, links, ReasonCode.TASK_EXPIRED, text)
    return Ended(status=TaskStatus.EXPIRED, changed=True, released=await _release(conn, links.autopilot_id))


async def refuse_task(conn: Conn, task_id: TaskId) -> Ended:
    """A queued task that belongs to nothing here is never given to a runtime: it and its run end (S4.7)."""
    links = await _links(conn, task_id)
    task = await _lock_down(conn, links)
    if task.status is not TaskStatus.QUEUED:
        return Ended(status=task.status, changed=False)
    text = "the task does not belong to this run and workspace"
    await endings.end_task(conn, task_id, TaskStatus.FAILED, error=text, kind=FailureKind.AGENT)
    await _fail_run(conn, links, ReasonCode.TARGET_UNAVAILABLE, text)
    return Ended(status=TaskStatus.FAILED, changed=True, released=await _release(conn, links.autopilot_id))


async def cancel_task(conn: Conn, task_id: TaskId) -> tuple[Ended, RuntimeId | None]:
    """A person cancels a live task; the runtime that holds it learns so on its next renewal, and is worth a wake-up."""
    links = await _links(conn, task_id)
    task = await _lock_down(conn, links)
    if task.status not in TASK_ACTIVE:
        return Ended(status=task.status, changed=False), None
    await endings.end_task(conn, task_id, TaskStatus.CANCELLED)
    await _fail_run(conn, links, ReasonCode.TASK_CANCELLED, "the task was cancelled")
    ended = Ended(
        status=TaskStatus.CANCELLED, changed=True, released=await _release(conn, links.autopilot_id)
    )
    return ended, task.runtime_id


async def hold_issue(conn: Conn, workspace_id: WorkspaceId, issue_id: IssueId) -> endings.IssueLinks:
    """Lock an issue with all that is above it, once for all edits of a transaction. Raises NoSuchIssue.

    A second call would look at the rule's policy anew, and lock the rule after its run and issue if that has changed.
    """
    links = await endings.read_issue_links(conn, workspace_id, issue_id)
    if links is None:
        raise NoSuchIssue
    await _lock_above(conn, links.origin_autopilot_id, links.origin_run_id)
    if await endings.lock_issue(conn, issue_id) is None:
        raise NoSuchIssue
    return links


async def move_issue(
    conn: Conn, links: endings.IssueLinks, status: IssueStatus, *, title: str | None = None
) -> Moved:
    """A person moves an issue that `hold_issue` holds: its run follows (S11.1), its live tasks end when it closes."""
    cancelled = await _cancel_tasks(conn, links.id) if status in ISSUE_CLOSED else frozenset[RuntimeId]()
    await endings.move_issue(conn, links.id, status, title=title)
    if links.origin_run_id is not None and status in _RUN_BY_ISSUE:
        run_status, code, text = _RUN_BY_ISSUE[status]
        await endings.finish_run(conn, links.origin_run_id, run_status, code=code, text=text)
    return Moved(cancelled_on=cancelled, released=await _release(conn, links.origin_autopilot_id))


async def delete_issue(conn: Conn, workspace_id: WorkspaceId, issue_id: IssueId) -> Moved:
    """An issue is deleted by a person: its live tasks end and its run fails `issue_deleted`. Raises NoSuchIssue."""
    links = await hold_issue(conn, workspace_id, issue_id)
    cancelled = await _cancel_tasks(conn, issue_id)
    if links.origin_run_id is not None:
        code, text = ReasonCode.ISSUE_DELETED, "the issue was deleted"
        await endings.finish_run(conn, links.origin_run_id, RunStatus.FAILED, code=code, text=text)
    await endings.delete_issue(conn, issue_id)
    return Moved(cancelled_on=cancelled, released=await _release(conn, links.origin_autopilot_id))


async def _fail(conn: Conn, links: TaskLinks, task: LockedTask, error: str, kind: FailureKind) -> Ended:
    error = error.strip()[:ERROR_LIMIT] or "the task failed without a word"
    if kind in _INFRASTRUCTURE and links.issue_id is not None and task.attempt < task.max_attempts:
        delay = RETRY_AFTER[min(task.attempt, len(RETRY_AFTER)) - 1]
        await endings.requeue_task(conn, links.id, delay, error=error, kind=kind)
        return Ended(status=TaskStatus.QUEUED, changed=True, retry=True)
    await endings.end_task(conn, links.id, TaskStatus.FAILED, error=error, kind=kind)
    await _fail_run(conn, links, ReasonCode.TASK_FAILED, error)
    return Ended(status=TaskStatus.FAILED, changed=True, released=await _release(conn, links.autopilot_id))


async def _fail_run(conn: Conn, links: TaskLinks, code: ReasonCode, text: str) -> None:
    if links.run_id is None or (
        links.issue_id is not None and await endings.has_active_task(conn, links.issue_id)
    ):
        return
    await endings.finish_run(conn, links.run_id, RunStatus.FAILED, code=code, text=text[:REASON_LIMIT])


async def _review(conn: Conn, links: TaskLinks, issue_id: IssueId, result: str) -> None:
    if result:
        await endings.add_comment(
            conn, uuid7(), links, issue_id, author_type="agent", author_id=links.agent_id, body=result
        )
    if (
        await endings.has_active_task(conn, issue_id)
        or await endings.lock_issue(conn, issue_id) not in _WAITING
    ):
        return
    await endings.move_issue(conn, issue_id, IssueStatus.IN_REVIEW)
    if links.run_id is not None:
        await endings.finish_run(conn, links.run_id, RunStatus.COMPLETED, result=result)


async def _cancel_tasks(conn: Conn, issue_id: IssueId) -> frozenset[RuntimeId]:
    tasks = await endings.lock_active_tasks(conn, issue_id)
    for task_id, _ in tasks:
        await endings.end_task(conn, task_id, TaskStatus.CANCELLED)
    return frozenset(runtime_id for _, runtime_id in tasks if runtime_id is not None)


async def _links(conn: Conn, task_id: TaskId) -> TaskLinks:
    links = await endings.read_task_links(conn, task_id)
    if links is None:
        raise NoSuchTask
    return links


async def _lock_held(conn: Conn, task_id: TaskId, lease: LeaseToken) -> tuple[TaskLinks, LockedTask]:
    links = await _links(conn, task_id)
    task = await _lock_down(conn, links)
    # An expired lease that nobody took still ends its task: only another holder, or none, has ended this one's right.
    if task.lease_token != lease:
        raise LeaseLost
    return links, task


async def _lock_down(conn: Conn, links: TaskLinks) -> LockedTask:
    await _lock_above(conn, links.autopilot_id, links.run_id)
    if links.issue_id is not None:
        await endings.lock_issue(conn, links.issue_id)
    return await endings.lock_task(conn, links.id)


async def _lock_above(conn: Conn, autopilot_id: AutopilotId | None, run_id: RunId | None) -> None:
    if autopilot_id is not None:
        await lock_for_finish(conn, [autopilot_id])
    if run_id is not None:
        await endings.lock_run(conn, run_id)


async def _release(conn: Conn, autopilot_id: AutopilotId | None) -> bool:
    return autopilot_id is not None and bool(await release_parked(conn, [autopilot_id]))
