"""What became of an occurrence: its plan's execution row, or why there is none (S7.3 to S7.12)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from autopilot.domain import cron
from autopilot.domain.cron import CronSchedule, Zone
from autopilot.domain.ids import TriggerId
from autopilot.domain.schedule import MAX_MISSED_COUNT
from autopilot.domain.states import ReasonCode
from autopilot.rules_api.explain.checks import Check, count, ok, span, stop, wait, when
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.rules_api.explain.switches import broken
from autopilot.storage import explain
from autopilot.storage.explain import Plan, Trigger

_PROMPT: Final = timedelta(seconds=10)
_EDITED_WITHIN: Final = timedelta(hours=1)
_SEE_SCHEDULER: Final = "See that a scheduler runs and reaches the database (`/readyz` on its metrics port)."
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def settled(look: Look, trigger: Trigger, plan: Plan) -> Check:
    """What the plan's execution row says: settled, failed, or in hand."""
    facts: dict[str, Any] = {
        "plan_time": plan.plan_time,
        "state": plan.state,
        "attempts": plan.attempts,
        "max_attempts": plan.max_attempts,
        "runner_id": plan.runner_id,
        "started_at": plan.started_at,
        "trigger_id": trigger.id,
    }
    return _settled(plan, facts, look.now)


def _settled(plan: Plan, facts: dict[str, Any], now: datetime) -> Check:
    tried = f"attempt {plan.attempts} of {plan.max_attempts}"
    if plan.state == "RUNNING" and now - plan.stale_at > _PROMPT:
        return wait(
            "plan",
            "plan_claimed",
            f"Scheduler {plan.runner_id} took it {when(plan.started_at)} ({tried}) and is gone: its time ended"
            f" {when(plan.stale_at)}, and no other has taken it over.",
            _SEE_SCHEDULER,
            **facts,
            stale_at=plan.stale_at,
        )
    if plan.state == "RUNNING":
        return wait(
            "plan",
            "plan_claimed",
            f"The plan is in the hands of scheduler {plan.runner_id} since {when(plan.started_at)} ({tried});"
            f" another takes it over at {when(plan.stale_at)} if nothing comes of it.",
            **facts,
            stale_at=plan.stale_at,
        )
    if plan.state == "FAILED":
        return _failed(plan, tried, facts, now)
    outcome = (plan.result or {}).get("outcome")
    if outcome == "not_due":
        code = (plan.result or {}).get("code")
        came = (
            "The plan failed first, and when it was tried again"
            if plan.attempts > 1
            else "When its turn came,"
        )
        return stop(
            "plan",
            "plan_not_due",
            f"{came} the trigger or the rule had been changed or turned off{f' ({code})' if code else ''}: an occurrence of"
            " the old schedule is not made up for.",
            "Trigger the autopilot by hand if that run is wanted.",
            **facts,
            reason_code=code,
        )
    late = (plan.finished_at or plan.started_at) - plan.plan_time
    missed = (
        f"; it stands for {count(plan.missed, 'occurrence')} that nobody could run" if plan.missed else ""
    )
    return ok(
        "plan",
        "planned",
        f"Scheduler {plan.runner_id} settled it {span(late)} after its time ({tried}): {outcome}{missed}.",
        **facts,
        outcome=outcome,
        missed=plan.missed,
    )


def _failed(plan: Plan, tried: str, facts: dict[str, Any], now: datetime) -> Check:
    error = f"{plan.error_code}: {plan.error_message}" if plan.error_message else str(plan.error_code)
    facts = {**facts, "error_code": plan.error_code, "error_message": plan.error_message}
    if plan.next_retry_at is not None and now - plan.next_retry_at > _PROMPT:
        return wait(
            "plan",
            "schedule_overdue",
            f"Admitting it failed ({tried}): {error}. It was to be tried again at {when(plan.next_retry_at)}, and no"
            " scheduler has.",
            _SEE_SCHEDULER,
            **facts,
            next_retry_at=plan.next_retry_at,
        )
    if plan.next_retry_at is not None:
        return wait(
            "plan",
            "plan_failed",
            f"Admitting it failed ({tried}): {error}. It is tried again at {when(plan.next_retry_at)}.",
            "Nothing, unless it goes on: the schedulers' logs name the plan.",
            **facts,
            next_retry_at=plan.next_retry_at,
        )
    return stop(
        "plan",
        "plan_exhausted",
        f"Admitting it failed ({tried}), the last time with {error}; there is no further attempt.",
        "Look for the error in the schedulers' logs, mend its cause, and trigger the autopilot by hand.",
        **facts,
    )


async def unplanned(
    look: Look, trigger: Trigger, schedule: CronSchedule, zone: Zone, minute: datetime, later: Plan | None
) -> Check:
    """The cron fires then, yet nothing was ever planned: why."""
    if later is not None and later.missed and _covers(schedule, zone, later, minute):
        return stop(
            "plan",
            ReasonCode.SCHEDULE_MISSED.value,
            f"Nobody could run it in time. When the schedule went on, {when(later.started_at)}, it settled everything up"
            f" to {when(later.plan_time, zone)} in one plan, with {count(later.missed, 'occurrence')} left without a run:"
            f" catch-up is {trigger.catch_up}.",
            next_step(ReasonCode.SCHEDULE_MISSED),
            settled_by=later.plan_time,
            missed=later.missed,
            catch_up=trigger.catch_up,
            lateness_s=trigger.lateness_s,
        )
    if trigger.schedule_error is not None:
        return broken(trigger, trigger.schedule_error)
    due = trigger.next_run_at
    if due is not None and due <= minute:
        return _awaited(trigger, zone, minute, due, look.now)
    return await _lost(look, due, minute, trigger.id)


async def _lost(look: Look, due: datetime | None, minute: datetime, trigger_id: TriggerId) -> Check:
    """Nothing waits for it and nothing settled it: an edit came between, or retention has been there."""
    changed = await explain.find_version_after(look.conn, look.rule.id, minute)
    oldest = await explain.find_plan(look.conn, trigger_id, _START)
    edited_then = changed is not None and (
        changed.published_at - minute <= _EDITED_WITHIN
        # Of one that has never fired, nothing can have been taken by retention.
        or (oldest is None and await explain.find_planned_run(look.conn, trigger_id) is None)
    )
    if (oldest is None or oldest.plan_time > minute) and not edited_then:
        since = f": the oldest plan still kept is of {when(oldest.plan_time)}" if oldest is not None else ""
        return stop(
            "plan",
            "history_gone",
            f"What became of it is not known any more{since}.",
            oldest_plan=oldest.plan_time if oldest is not None else None,
        )
    told = f" by {await look.version(changed)}" if changed is not None else ""
    return stop(
        "plan",
        "planned_anew",
        f"It was never settled: the schedule was set anew before a scheduler took it{told}, and counts from there.",
        "Trigger the autopilot by hand if that run is wanted.",
        next_run_at=due,
        resumed_at=look.rule.resumed_at,
        rule_version=changed.version if changed is not None else None,
    )


def _covers(schedule: CronSchedule, zone: Zone, later: Plan, minute: datetime) -> bool:
    """Whether a later plan stands for this occurrence too: it counts those that it left without a run."""
    if later.missed >= MAX_MISSED_COUNT:
        return True
    start = minute - timedelta(microseconds=1)
    between = cron.occurrences(schedule, zone, start, until=later.plan_time, limit=later.missed + 2)
    return len(between) <= later.missed + 1


def _awaited(trigger: Trigger, zone: Zone, minute: datetime, due: datetime, now: datetime) -> Check:
    if minute > now:
        return wait(
            "plan", "not_yet", f"It is still to come: {when(minute, zone)}.", next_run_at=due, now=now
        )
    return overdue(trigger, zone, due, now) or wait(
        "plan", "just_due", "It has just come due; a scheduler takes it within seconds.", next_run_at=due
    )


def overdue(trigger: Trigger, zone: Zone | None, due: datetime, now: datetime) -> Check | None:
    """Due for longer than a scheduler takes; None if not."""
    if now - due < _PROMPT:
        return None
    return wait(
        "plan",
        "schedule_overdue",
        f"No scheduler has taken it: the trigger is due since {when(due, zone)}, {span(now - due)} ago.",
        _SEE_SCHEDULER,
        next_run_at=due,
        now=now,
        trigger_id=trigger.id,
    )
