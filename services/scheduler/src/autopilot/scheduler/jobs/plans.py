"""The schedule transaction: due plans become runs, finished executions and a next occurrence, all or nothing (S7.8)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from autopilot.domain import cron
from autopilot.domain.admission import Actor, judge
from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import AutopilotId, RunId, TriggerId
from autopilot.domain.schedule import DueDecision, decide_due
from autopilot.domain.states import AutopilotStatus, ReasonCode, Source
from autopilot.engine.admit import Firing, admit_firings, new_run
from autopilot.engine.admit import Outcome as Admission
from autopilot.engine.overlap import lock_for_finish
from autopilot.kit import points
from autopilot.kit.ids import random_token, uuid7
from autopilot.storage import facts, schedules
from autopilot.storage.database import Conn
from autopilot.storage.run_admission import insert_runs
from autopilot.storage.schedules import (
    DueRetry,
    DueTrigger,
    Failed,
    FailedPlan,
    Finished,
    LockedRetry,
    Move,
    Signature,
)

MAX_ATTEMPTS: Final = 3
BACKOFF: Final = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))

_BY_SCHEDULE: Final = Actor(source=Source.SCHEDULE)
_STOPPED: Final = {
    AutopilotStatus.PAUSED: ReasonCode.AUTOPILOT_PAUSED,
    AutopilotStatus.ARCHIVED: ReasonCode.AUTOPILOT_ARCHIVED,
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence to admit. `missed`: it does not run, and stands for so many; `coalesced`: it runs for so many more."""

    trigger_id: TriggerId
    autopilot_id: AutopilotId
    schedule_rev: int
    planned_at: datetime
    missed: int | None = None
    coalesced: int | None = None


class Settled(msgspec.Struct, kw_only=True):
    """What one transaction did, for the caller to act on after the commit. `late_s` are the delays of what was admitted."""

    triggers: int = 0
    plans: list[Finished] = msgspec.field(default_factory=list)
    late_s: list[float] = msgspec.field(default_factory=list)
    stopped: list[TriggerId] = msgspec.field(default_factory=list)

    @property
    def admitted(self) -> bool:
        return any(plan.outcome == "admitted" for plan in self.plans)


def signature(runner_id: UUID) -> Signature:
    """How this process signs the executions of one batch."""
    return Signature(runner_id=runner_id, token=random_token(), max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)


async def settle_next(conn: Conn, by: Signature, limit: int, picked: list[DueTrigger]) -> Settled:
    """Settle the triggers that are due longest; `picked` tells the caller which, should it fail."""
    picked[:] = await schedules.lock_due(conn, limit)
    return await _settle(conn, by, picked)


async def settle_again(conn: Conn, by: Signature, triggers: Sequence[DueTrigger]) -> Settled:
    """Settle those of these triggers that are still due."""
    await lock_for_finish(conn, {trigger.autopilot_id for trigger in triggers})
    return await _settle(conn, by, await schedules.lock_due_again(conn, triggers))


async def settle_retries(conn: Conn, by: Signature, retries: Sequence[DueRetry]) -> Settled:
    """Settle failed plans at their own time, however late; one whose schedule was changed meanwhile is not due any more."""
    locked = await _lock_retries(conn, retries)
    autopilots = {retry.id: retry.autopilot_id for retry in retries}
    over: list[Finished] = []
    plans: list[Plan] = []
    for retry in locked:
        autopilot_id = autopilots[retry.id]
        if autopilot_id is None or retry.current_rev != retry.schedule_rev:
            over.append(_not_due(retry))
            continue
        plans.append(
            Plan(
                trigger_id=retry.trigger_id,
                autopilot_id=autopilot_id,
                schedule_rev=retry.schedule_rev,
                planned_at=retry.planned_at,
                missed=retry.missed if retry.was_missed else None,
                coalesced=None if retry.was_missed else retry.missed,
            )
        )
    finished = await _admit(conn, plans) + over
    await schedules.record_finished(conn, by, finished)
    await points.hit("scheduler.schedule.before_commit")
    return Settled(plans=finished)


async def fail_due(conn: Conn, by: Signature, trigger: DueTrigger, message: str) -> list[FailedPlan]:
    """Write down that a trigger's due plans failed, each to be tried again at its own time, and move the trigger on.

    A trigger that cannot even be planned stops, with an error that people see.
    """
    await lock_for_finish(conn, {trigger.autopilot_id})
    held = await schedules.lock_due_again(conn, [trigger])
    if not held:
        return []
    [trigger] = held
    now = await facts.database_now(conn)
    try:
        decision = _decide(trigger, now)
    except Exception:  # noqa: BLE001 - per-item isolation: whatever is wrong with this schedule stops it alone
        stop = Move(
            id=trigger.id,
            schedule_rev=trigger.schedule_rev,
            next_run_at=None,
            error=f"cannot be planned: {message}",
        )
        await schedules.advance(conn, [stop])
        return []
    failed = [
        Failed(
            id=uuid7(),
            trigger_id=plan.trigger_id,
            planned_at=plan.planned_at,
            schedule_rev=plan.schedule_rev,
            missed=plan.missed or plan.coalesced,
            was_missed=plan.missed is not None,
        )
        for plan in _plans_of(trigger, decision)
    ]
    await schedules.advance(conn, [_move(trigger, decision)])
    results = await schedules.record_failed(conn, by, failed, message)
    await _leave_failed_runs(conn, results, trigger.autopilot_id, now)
    return results


async def fail_retry(conn: Conn, by: Signature, retry: DueRetry, message: str) -> list[FailedPlan]:
    """Count one more failed attempt of a plan; the last one leaves a failed run in the same transaction (HAZARDS 23)."""
    locked = await _lock_retries(conn, [retry])
    failed = [
        Failed(
            id=uuid7(), trigger_id=one.trigger_id, planned_at=one.planned_at, schedule_rev=one.schedule_rev
        )
        for one in locked
    ]
    results = await schedules.record_failed(conn, by, failed, message)
    if retry.autopilot_id is not None:
        await _leave_failed_runs(conn, results, retry.autopilot_id, await facts.database_now(conn))
    return results


async def _settle(conn: Conn, by: Signature, triggers: Sequence[DueTrigger]) -> Settled:
    if not triggers:
        return Settled()
    now = await facts.database_now(conn)
    plans: list[Plan] = []
    moves: list[Move] = []
    stopped: list[TriggerId] = []
    for trigger in triggers:
        try:
            decision = _decide(trigger, now)
        except InvalidValue as refused:
            # Saved by a release whose rules or timezones differed: it stops here alone, and says why.
            error = f"{refused.field}: {refused.message}"
            moves.append(
                Move(id=trigger.id, schedule_rev=trigger.schedule_rev, next_run_at=None, error=error)
            )
            stopped.append(trigger.id)
            continue
        plans += _plans_of(trigger, decision)
        moves.append(_move(trigger, decision))
    finished = await _admit(conn, plans)
    await schedules.record_finished(conn, by, finished)
    await schedules.advance(conn, moves)
    await points.hit("scheduler.schedule.before_commit")
    late_s = [(now - plan.planned_at).total_seconds() for plan in finished if plan.outcome == "admitted"]
    return Settled(triggers=len(triggers), plans=finished, late_s=late_s, stopped=stopped)


async def _admit(conn: Conn, plans: Sequence[Plan]) -> list[Finished]:
    """Admit a run for each plan that has none; one that failed before it was dispatched gives way to a clean one (S7.12)."""
    if not plans:
        return []
    runs = await schedules.find_plan_runs(conn, [(plan.trigger_id, plan.planned_at) for plan in plans])
    if replaceable := [run.id for run in runs.values() if run.replaceable]:
        await schedules.free_plans(conn, replaceable)
    reused = {key: run.id for key, run in runs.items() if not run.replaceable}
    asked = [plan for plan in plans if (plan.trigger_id, plan.planned_at) not in reused]
    firings = {(plan.trigger_id, plan.planned_at): _firing(plan) for plan in asked}
    outcomes = {
        (outcome.firing.trigger_id, outcome.firing.planned_at): outcome
        for outcome in await admit_firings(conn, list(firings.values()))
    }
    return [
        _finished(
            plan,
            reused.get((plan.trigger_id, plan.planned_at)),
            outcomes.get((plan.trigger_id, plan.planned_at)),
        )
        for plan in plans
    ]


def _finished(plan: Plan, reused: RunId | None, admission: Admission | None) -> Finished:
    done = Finished(
        id=uuid7(),
        trigger_id=plan.trigger_id,
        planned_at=plan.planned_at,
        schedule_rev=plan.schedule_rev,
        outcome="not_due",
        missed=plan.missed or plan.coalesced,
    )
    if reused is not None:
        return msgspec.structs.replace(done, outcome="reused", run_id=reused)
    if admission is None:
        return done
    code = admission.decision.code
    match admission.decision.outcome:
        case "stop":
            return msgspec.structs.replace(done, code=code)
        case "skip":
            return msgspec.structs.replace(done, outcome="skipped", run_id=admission.firing.run_id, code=code)
        case _:
            return msgspec.structs.replace(done, outcome="admitted", run_id=admission.firing.run_id)


def _firing(plan: Plan) -> Firing:
    return Firing(
        run_id=RunId(uuid7()),
        autopilot_id=plan.autopilot_id,
        actor=_BY_SCHEDULE,
        trigger_id=plan.trigger_id,
        planned_at=plan.planned_at,
        missed=plan.missed,
        missed_text=_missed_text(plan.missed) if plan.missed is not None else None,
        replaces=plan.coalesced,
    )


def _missed_text(count: int) -> str:
    if count == 1:
        return "the occurrence came too late to run"
    return f"{count} occurrences came too late to run, this one the newest of them"


def _decide(trigger: DueTrigger, now: datetime) -> DueDecision:
    return decide_due(
        cron.parse(trigger.cron),
        cron.zone(trigger.timezone),
        first_due=trigger.next_run_at,
        now=now,
        catch_up=trigger.catch_up,
        lateness_s=trigger.lateness_s,
    )


def _plans_of(trigger: DueTrigger, decision: DueDecision) -> list[Plan]:
    return [
        Plan(
            trigger_id=trigger.id,
            autopilot_id=trigger.autopilot_id,
            schedule_rev=trigger.schedule_rev,
            planned_at=planned.planned_at,
            missed=planned.missed_count if planned.missed_reason is not None else None,
            coalesced=(planned.missed_count or None) if planned.missed_reason is None else None,
        )
        for planned in decision.plans
    ]


def _move(trigger: DueTrigger, decision: DueDecision) -> Move:
    return Move(id=trigger.id, schedule_rev=trigger.schedule_rev, next_run_at=decision.next_run_at)


async def _lock_retries(conn: Conn, retries: Sequence[DueRetry]) -> list[LockedRetry]:
    await lock_for_finish(conn, {retry.autopilot_id for retry in retries if retry.autopilot_id is not None})
    return await schedules.lock_retries(conn, retries)


def _not_due(retry: LockedRetry) -> Finished:
    code = _STOPPED.get(retry.status)
    if code is None and not retry.enabled:
        code = ReasonCode.TRIGGER_DISABLED
    return Finished(
        id=uuid7(),
        trigger_id=retry.trigger_id,
        planned_at=retry.planned_at,
        schedule_rev=retry.schedule_rev,
        outcome="not_due",
        code=code,
    )


async def _leave_failed_runs(
    conn: Conn, plans: Sequence[FailedPlan], autopilot_id: AutopilotId, now: datetime
) -> None:
    """A plan out of attempts does not end in silence (S2.3, S7.8)."""
    exhausted = [plan for plan in plans if plan.next_retry_at is None]
    if not exhausted:
        return
    keys = [(autopilot_id, plan.trigger_id) for plan in exhausted]
    snapshots = await facts.load_snapshots(conn, keys)
    runs = []
    for plan, key in zip(exhausted, keys, strict=True):
        firing = Firing(
            run_id=RunId(uuid7()),
            autopilot_id=autopilot_id,
            actor=_BY_SCHEDULE,
            trigger_id=plan.trigger_id,
            planned_at=plan.planned_at,
            replaces=plan.missed,
        )
        snapshot = snapshots[key]
        decision = msgspec.structs.replace(
            judge(snapshot, _BY_SCHEDULE, now),
            outcome="skip",
            code=ReasonCode.INTERNAL_ERROR,
            text=f"the occurrence could not be admitted in {plan.attempts} attempts",
        )
        run = new_run(snapshot, firing, decision, now)
        assert run is not None
        runs.append(msgspec.structs.replace(run, outcome="fail"))
    await insert_runs(conn, runs)
