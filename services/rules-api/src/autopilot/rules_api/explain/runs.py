"""Why a run is where it is: where it waits, or what ended it (S2, S10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, assert_never

from autopilot.domain.states import RunStatus, Source
from autopilot.rules_api.explain.attribution import attribution
from autopilot.rules_api.explain.checks import Check, count, note, ok, span, stop, wait, when
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.rules_api.explain.target import readiness
from autopilot.rules_api.explain.work import explain_work
from autopilot.storage import explain
from autopilot.storage.explain import MAX_LISTED, BriefRun, Place
from autopilot.storage.runs import Run

_SLOW: Final = timedelta(seconds=10)
_DISPATCH_ATTEMPTS: Final = 5
_SEE_DISPATCHER: Final = (
    "See that a dispatcher runs and reaches the database (`/readyz` on its metrics port)."
)


async def explain_run(look: Look, run: Run) -> list[Check]:
    """Where the run came from, who answers for it, and then what its status stands on."""
    checks = [await _origin(look, run), await attribution(look, run)]
    match run.status:
        case RunStatus.PENDING:
            checks.append(await _pending(look, run))
        case RunStatus.SKIPPED | RunStatus.FAILED:
            checks.append(_ended(run))
            checks += await _since(look, run)
        case RunStatus.COMPLETED:
            checks.append(_completed(run))
        case _:
            checks += await explain_work(look, run)
    return checks


async def _origin(look: Look, run: Run) -> Check:
    match run.source:
        case Source.MANUAL:
            told = f"{await look.name(run.originator_id)} ran it by hand"
        case Source.API:
            told = "it was asked for over the API"
        case Source.SCHEDULE:
            told = "its schedule ran it" + (
                f" for {when(run.planned_at)}" if run.planned_at is not None else ""
            )
        case Source.WEBHOOK:
            told = f"a webhook ({run.delivery_event}) ran it"
        case _:
            assert_never(run.source)
    return ok(
        "run",
        "admitted",
        f"Admitted {when(run.created_at)} by version {run.rule_version} of the rule: {told}.",
        run_id=run.id,
        source=run.source,
        trigger_id=run.trigger_id,
        delivery_id=run.delivery_id,
        planned_at=run.planned_at,
        rule_version=run.rule_version,
        admitted_at=run.created_at,
    )


async def _pending(look: Look, run: Run) -> Check:
    place = await explain.find_place(look.conn, run.id)
    if place is None:
        return stop(
            "queue",
            "no_entry",
            "The run is pending and has no place in the queue, which cannot be.",
            "Run `python -m autopilot.storage check`, and report what it says.",
            run_id=run.id,
        )
    if place.kind != "parked":
        return waiting(look, place, what="run", allowed=_DISPATCH_ATTEMPTS)
    live = await explain.list_live_runs(look.conn, look.rule.id, run.id)
    ahead = ", ".join(f"{one.id} ({one.status.value})" for one in live) or "none: it is released within 15 s"
    until = f"; if it still waits at {when(place.available_at)} it is skipped" if place.available_at else ""
    return wait(
        "queue",
        "parked",
        f"It waits behind the runs in flight, as overlap policy queue_one says: {ahead}{until}.",
        "Nothing; or end the run in flight, or set the overlap policy to allow.",
        live_runs=[one.id for one in live],
        deadline=place.available_at,
    )


def waiting(look: Look, place: Place, *, what: str, allowed: int) -> Check:
    """Where something waits for a dispatcher: its turn, a lease, its next attempt, or its pace."""
    facts = {
        "kind": place.kind,
        "ahead": place.ahead,
        "attempts": place.attempts,
        "claims": place.claims,
        "enqueued_at": place.enqueued_at,
        "lease_until": place.lease_until,
        "available_at": place.available_at,
        "last_error": place.last_error,
    }
    tried = f"{place.attempts} of {allowed} attempts failed"
    late = place.available_at is not None and look.now - place.available_at > _SLOW
    missing = ", and no dispatcher has taken it" if late else ""
    if place.kind == "paced" and place.available_at is not None:
        return wait(
            "queue",
            "paced",
            f"Its trigger makes more runs than its pace allows: this {what} has its slot at {when(place.available_at)}{missing}.",
            _SEE_DISPATCHER if late else "Nothing, or raise the trigger's pace_per_min.",
            **facts,
        )
    if place.available_at is not None:
        return wait(
            "queue",
            "retrying",
            f"{tried}, the last with: {place.last_error}. It is tried again at {when(place.available_at)}{missing}.",
            _SEE_DISPATCHER if late else "Mend what the error names; the next attempt comes by itself.",
            **facts,
        )
    waited = span(look.now - place.enqueued_at)
    if place.lease_until is not None and place.lease_until > look.now:
        return wait(
            "queue",
            "leased",
            f"A dispatcher holds it (claim {place.claims}, {tried}); if it dies, another takes the {what} at"
            f" {when(place.lease_until)}.",
            "Nothing: within the lease it is done or handed on.",
            **facts,
        )
    if place.lease_until is not None:
        return wait(
            "queue",
            "lease_expired",
            f"The dispatcher that held it is gone: its lease ended {when(place.lease_until)}, and nobody has claimed the"
            f" {what} since.",
            "See that a dispatcher runs (`/readyz`); it is claimed within a second by one that does.",
            **facts,
        )
    slow = look.now - place.enqueued_at > _SLOW
    return wait(
        "queue",
        "queued",
        f"It waits for a dispatcher for {waited}, with {count(place.ahead, 'entry') if place.ahead == 1 else f'{place.ahead} entries'} ahead of it.",
        _SEE_DISPATCHER if slow else "Nothing: its turn comes within a second or two.",
        **facts,
    )


def _ended(run: Run) -> Check:
    assert run.reason_code is not None
    at = f" {when(run.completed_at)}" if run.completed_at is not None else ""
    error = f" Its last error was: {run.last_dispatch_error}." if run.last_dispatch_error else ""
    missed = f" It stands for {count(run.missed_count, 'occurrence')}." if run.missed_count else ""
    return stop(
        "run",
        run.reason_code.value,
        f"The run was {run.status.value}{at}: {run.failure_reason}.{error}{missed}",
        next_step(run.reason_code),
        run_id=run.id,
        reason_code=run.reason_code,
        attempts=run.dispatch_attempts,
        completed_at=run.completed_at,
        issue_id=run.issue_id,
        task_id=run.task_id,
        missed_count=run.missed_count,
    )


async def _since(look: Look, run: Run) -> list[Check]:
    """For one that never started: whether it would today, as far as the target goes."""
    if run.started_at is not None:
        return []
    today = await readiness(look, run.trigger_id if run.source in (Source.SCHEDULE, Source.WEBHOOK) else None)
    return [
        note("target", check.code, f"As things stand now: {check.text}", **check.facts) for check in today
    ]


def _completed(run: Run) -> Check:
    at = when(run.completed_at) if run.completed_at is not None else "some time ago"
    if run.issue_key is not None:
        return ok(
            "run",
            "completed",
            f"It ran: issue {run.issue_key} was finished, {at}.",
            issue_id=run.issue_id,
            task_id=run.task_id,
        )
    empty = "" if run.result else " It left no result: the agent printed nothing."
    return ok("run", "completed", f"It ran: its task completed, {at}.{empty}", task_id=run.task_id)


async def tell_apart(look: Look, runs: list[BriefRun]) -> Check:
    """Several runs of one minute, each by the firing that made it: two keys, never one twice."""
    told = [await _firing(look, run) for run in runs]
    return note(
        "time",
        "several_runs",
        f"{'At least ' if len(runs) >= MAX_LISTED else ''}{len(runs)} runs belong to that minute, each made by a firing of its own: {'; '.join(told)}."
        " One firing never makes two runs: its key is unique.",
        runs=[
            {
                "id": run.id,
                "source": run.source,
                "status": run.status,
                "trigger_id": run.trigger_id,
                "planned_at": run.planned_at,
                "delivery_id": run.delivery_id,
                "originator_id": run.originator_id,
                "created_at": run.created_at,
            }
            for run in runs
        ],
    )


async def _firing(look: Look, run: BriefRun) -> str:
    match run.source:
        case Source.MANUAL:
            made = f"by hand by {await look.name(run.originator_id)}"
        case Source.API:
            made = "by a call of the API"
        case Source.WEBHOOK:
            made = f"by delivery {run.delivery_id} to trigger {run.trigger_id}"
        case Source.SCHEDULE:
            made = f"by trigger {run.trigger_id}" + (
                f" for {when(run.planned_at)}" if run.planned_at is not None else ""
            )
        case _:
            assert_never(run.source)
    return f"{run.id} ({run.status.value}) {made}"
