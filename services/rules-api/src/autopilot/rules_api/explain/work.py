"""What a started run waits for: its task, the runtime that is to take it, or a person (S11)."""

from __future__ import annotations

from typing import Any

from autopilot.domain.admission import ONLINE_WITHIN
from autopilot.domain.states import ReasonCode, RunStatus, TaskStatus
from autopilot.rules_api.explain.checks import Check, count, ok, span, stop, wait, when
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.storage import explain
from autopilot.storage.explain import Station, Work
from autopilot.storage.runs import Run

_ACTIVE = (TaskStatus.QUEUED, TaskStatus.CLAIMED, TaskStatus.RUNNING)


async def explain_work(look: Look, run: Run) -> list[Check]:
    """The run has its issue or task: where that stands."""
    made = f"issue {run.issue_key}" if run.issue_key is not None else "a task"
    started = f" {when(run.started_at)}" if run.started_at is not None else ""
    checks = [
        ok(
            "run",
            "dispatched",
            f"It was dispatched{started} and made {made}.",
            issue_id=run.issue_id,
            task_id=run.task_id,
            issue_status=run.issue_status,
        )
    ]
    tasks = await explain.list_tasks(look.conn, run.task_id, run.issue_id)
    active = next((task for task in tasks if task.status in _ACTIVE), None)
    if active is None:
        checks.append(_idle(run, tasks))
    elif active.status is TaskStatus.QUEUED:
        checks.append(await _queued(look, active))
    else:
        checks.append(_held(look, active))
    return checks


def _idle(run: Run, tasks: list[Work]) -> Check:
    last = tasks[0] if tasks else None
    ended = f"; its last task {last.status.value}" if last is not None else ""
    if run.status is RunStatus.ISSUE_CREATED:
        return wait(
            "issue",
            "waiting_for_person",
            f"Issue {run.issue_key} is {run.issue_status} with no task at work{ended}: it waits for a person, however long.",
            "Review the issue: done or in_review completes the run, cancelled or blocked fails it.",
            issue_id=run.issue_id,
            issue_status=run.issue_status,
        )
    return stop(
        "task",
        "no_task",
        f"The run is {run.status.value} and no task is at work{ended}, which cannot be.",
        "Run `python -m autopilot.storage check`, and report what it says.",
        task_id=run.task_id,
    )


async def _queued(look: Look, task: Work) -> Check:
    facts: dict[str, Any] = {
        "task_id": task.id,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "available_at": task.available_at,
        "expires_at": task.expires_at,
    }
    if task.available_at > look.now:
        return wait(
            "task",
            "task_retrying",
            f"Attempt {task.attempt} of {task.max_attempts} begins at {when(task.available_at)}: the one before ended by"
            f" {_trouble(task)}.",
            "Nothing: it begins by itself.",
            **facts,
        )
    ends = f" Nobody taking it, it expires at {when(task.expires_at)}." if task.expires_at is not None else ""
    agent = await look.agent(task.agent_id)
    station = await explain.find_station(look.conn, look.rule.workspace_id, task.agent_id, task_id=task.id)
    if station is None or station.runtime_id is None:
        return wait(
            "task",
            ReasonCode.AGENT_RUNTIME_REQUIRED.value,
            f"The task waits since {when(task.created_at)}: {agent} is bound to no runtime.{ends}",
            next_step(ReasonCode.AGENT_RUNTIME_REQUIRED),
            **facts,
        )
    facts["runtime_id"] = station.runtime_id
    return _for_runtime(look, task, agent, station, ends, facts)


def _for_runtime(
    look: Look, task: Work, agent: str, station: Station, ends: str, facts: dict[str, Any]
) -> Check:
    """A queued task with a runtime to take it: silent, broken, full, or about to."""
    facts |= {"runtime_seen_at": station.seen_at, "held": station.held, "ahead": station.ahead}
    seen = station.seen_at
    if seen is None or look.now - seen > ONLINE_WITHIN:
        silent = f"silent for {span(look.now - seen)}" if seen is not None else "not heard of yet"
        return wait(
            "task",
            ReasonCode.RUNTIME_OFFLINE.value,
            f"The task waits since {when(task.created_at)} for the runtime of {agent}, which is {silent}.{ends}",
            "Start the runtime (`autopilot runtime run`): it takes the task at once.",
            **facts,
        )
    if not station.usable:
        told = ": ".join(part for part in (station.detail, station.repair_hint) if part)
        return wait(
            "task",
            ReasonCode.RUNTIME_UNUSABLE.value,
            f"The task waits: the runtime answers and cannot run {agent} ({told or 'it does not say why'}).{ends}",
            next_step(ReasonCode.RUNTIME_UNUSABLE),
            **facts,
        )
    if station.concurrency is not None and station.held >= station.concurrency:
        return wait(
            "task",
            "runtime_busy",
            f"The runtime holds as many tasks as it takes at once ({station.held} of {station.concurrency}), with"
            f" {count(station.ahead, 'task')} ahead of this one.{ends}",
            "Wait, or let the runtime take more at once (`--concurrency`).",
            **facts,
        )
    return wait(
        "task",
        "task_queued",
        f"The task waits for {span(look.now - task.created_at)} to be taken, with {count(station.ahead, 'task')} ahead.{ends}",
        "Nothing: the runtime is online and takes it within seconds.",
        **facts,
    )


def _held(look: Look, task: Work) -> Check:
    facts: dict[str, Any] = {
        "task_id": task.id,
        "runtime_id": task.runtime_id,
        "lease_until": task.lease_until,
        "claimed_at": task.claimed_at,
        "attempt": task.attempt,
        "progress": task.progress,
    }
    lease = task.lease_until
    if lease is not None and lease <= look.now:
        return wait(
            "task",
            "runtime_lost",
            f"The runtime that held the task has not been heard since its lease ended, {when(lease)}: the task is taken from"
            " it within a minute.",
            "Nothing: a task of an issue is queued again, a bare one fails.",
            **facts,
        )
    if task.cancel_requested_at is not None:
        return wait(
            "task",
            "task_cancelling",
            f"The task was cancelled {when(task.cancel_requested_at)}; its runtime is ending the process.",
            **facts,
        )
    since = f" since {when(task.claimed_at)}" if task.claimed_at is not None else ""
    said = f" The last it said: {task.progress}" if task.progress else ""
    return wait(
        "task",
        "task_running",
        f"A runtime is at work on it{since} (attempt {task.attempt} of {task.max_attempts}).{said}",
        "Nothing: the run ends when the task does.",
        **facts,
    )


def _trouble(task: Work) -> str:
    kind = task.failure_kind.value if task.failure_kind is not None else "trouble of the infrastructure"
    return f"{kind} ({task.error})" if task.error else kind
