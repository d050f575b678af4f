"""The question, and where the walk begins: a run, a delivery, a minute, or the rule as it stands (S13.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import RunId
from autopilot.domain.states import AutopilotStatus, TriggerKind
from autopilot.rules_api.explain.checks import (
    MINUTE,
    Check,
    Finding,
    conclude,
    first_cause,
    note,
    ok,
    stop,
    when,
)
from autopilot.rules_api.explain.deliveries import explain_delivery
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.occurrence import look_at, twins, zone_of
from autopilot.rules_api.explain.plans import overdue
from autopilot.rules_api.explain.runs import explain_run, tell_apart
from autopilot.rules_api.explain.switches import broken, disabled, off
from autopilot.rules_api.explain.target import readiness
from autopilot.storage import delivery_views, explain, runs
from autopilot.storage.explain import Trigger


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked; all None asks how the rule stands now. `at` is any instant of the minute meant."""

    at: datetime | None = None
    trigger_id: UUID | None = None
    delivery_id: UUID | None = None
    run_id: UUID | None = None


async def walk(look: Look, question: Question) -> list[Finding]:
    """The findings, the answer first. NotFound for a run, delivery or trigger that is not of this rule."""
    if question.run_id is not None:
        return [await _run(look, question.run_id)]
    if question.delivery_id is not None:
        return [await _delivery(look, question.delivery_id)]
    minute = question.at.astimezone(UTC).replace(second=0, microsecond=0) if question.at is not None else None
    triggers = await explain.list_triggers(
        look.conn, look.rule.workspace_id, look.rule.id, question.trigger_id, at=minute
    )
    if question.trigger_id is not None and not triggers:
        raise NotFound("There is no such trigger.")
    if minute is not None:
        return await _minute(look, triggers, minute, named=question.trigger_id is not None)
    return [await _now(look, triggers, named=question.trigger_id is not None)]


async def _run(look: Look, run_id: UUID) -> Finding:
    run = await runs.find_run(look.conn, look.rule.workspace_id, look.rule.id, run_id)
    if run is None:
        raise NotFound("There is no such run.")
    return conclude("run", run.id, await explain_run(look, run))


async def _delivery(look: Look, delivery_id: UUID) -> Finding:
    delivery = await delivery_views.find_delivery(
        look.conn, look.rule.workspace_id, look.rule.id, delivery_id
    )
    if delivery is None:
        raise NotFound("There is no such delivery.")
    return conclude("delivery", delivery.id, await explain_delivery(look, delivery))


async def _minute(look: Look, triggers: list[Trigger], minute: datetime, *, named: bool) -> list[Finding]:
    """All that the rule was to do in a minute: occurrences that have no run first, then all that ran or came in.

    Last comes what was off, and what had nothing to do then: the answer only where nothing else happened.
    """
    missing: list[Finding] = []
    planned: list[Finding] = []
    idle: list[Finding] = []
    quiet: list[Finding] = []
    told: set[RunId] = set()
    for trigger in triggers:
        if trigger.kind is not TriggerKind.SCHEDULE:
            continue
        found = await look_at(look, trigger, minute)
        if found.run_id is not None:
            told.add(found.run_id)
            run = await runs.find_run(look.conn, look.rule.workspace_id, look.rule.id, found.run_id)
            found.checks += await explain_run(look, run) if run is not None else []
            twin = await twins(look, trigger, minute)
            found.checks += [twin] if twin is not None else []
        place = (
            planned if found.run_id is not None else missing if found.fires else idle if found.off else quiet
        )
        place.append(conclude("trigger", trigger.id, found.checks))
    received = await _received(look, minute, triggers[0] if named else None)
    ids = [trigger.id for trigger in triggers]
    happened = await explain.list_runs_of(
        look.conn, look.rule.id, ids, minute, minute + MINUTE, trigger_id=ids[0] if named else None
    )
    others = [await _run(look, run.id) for run in happened if run.id not in told and run.delivery_id is None]
    several = [conclude("time", None, [await tell_apart(look, happened)])] if len(happened) > 1 else []
    findings = [*missing, *several, *planned, *received, *others, *idle, *quiet]
    if not findings:
        findings.append(conclude("time", None, [_nothing(minute, named=named)]))
    return findings


async def _received(look: Look, minute: datetime, trigger: Trigger | None) -> list[Finding]:
    found = await explain.list_deliveries(
        look.conn,
        look.rule.id,
        minute,
        minute + MINUTE,
        trigger_id=trigger.id if trigger is not None else None,
    )
    return [await _delivery(look, one.id) for one in found]


def _nothing(minute: datetime, *, named: bool) -> Check:
    what = "The trigger" if named else "The autopilot"
    return stop(
        "time",
        "nothing_received",
        f"{what} has no schedule for that minute ({when(minute)}), and no webhook, hand or call asked for a run then.",
        "For a webhook, see at the provider what it sent and what it was answered: a 404 or 400 is kept nowhere here.",
        at=minute,
    )


async def _now(look: Look, triggers: list[Trigger], *, named: bool) -> Finding:
    """How the rule stands: what would stop the next run, and how the last one fared."""
    checks: list[Check] = []
    if look.rule.status is not AutopilotStatus.ACTIVE:
        checks.append(await off(look, look.rule.status, look.now))
    else:
        checks.append(ok("autopilot", "active", "The autopilot is active.", rule_version=look.rule.version))
    meant = named or not any(trigger.enabled for trigger in triggers)
    checks += [check for trigger in triggers for check in await _trigger(look, trigger, meant=meant)]
    if not triggers:
        checks.append(
            note("trigger", "no_trigger", "It has no trigger: it runs by hand and over the API alone.")
        )
    checks += await readiness(look, triggers[0].id if named else None)
    last = await _last_run(look, triggers[0] if named else None)
    if last is not None:
        checks += last
    if first_cause(checks) is None:
        checks.append(ok("autopilot", "nothing_stops_it", _coming(triggers)))
    return conclude("trigger" if named else "autopilot", triggers[0].id if named else look.rule.id, checks)


async def _trigger(look: Look, trigger: Trigger, *, meant: bool) -> list[Check]:
    """Whether a trigger can fire. One that is off is no cause beside others that are on: those may be meant."""
    if trigger.deleted_at is not None:
        return [stop("trigger", "trigger_deleted", f"The trigger was deleted {when(trigger.deleted_at)}.")]
    if trigger.schedule_error is not None:
        return [broken(trigger, trigger.schedule_error)]
    if not trigger.enabled:
        check = await disabled(look, trigger, look.now)
        return [check] if meant else [note("trigger", check.code, check.text, **check.facts)]
    if trigger.kind is TriggerKind.SCHEDULE and trigger.next_run_at is None:
        if look.rule.status is not AutopilotStatus.ACTIVE:
            return []
        return [
            stop(
                "cron",
                "cron_never_matches",
                f"`{trigger.cron}` in {trigger.timezone} has no further occurrence.",
                "Save a cron expression for which the preview shows times.",
                trigger_id=trigger.id,
            )
        ]
    if trigger.next_run_at is not None:
        late = overdue(trigger, zone_of(trigger.timezone), trigger.next_run_at, look.now)
        return [late] if late is not None else []
    return []


async def _last_run(look: Look, trigger: Trigger | None) -> list[Check] | None:
    """The last word about the newest run, as a note: it says how things go, not what stops the next."""
    if trigger is not None and trigger.kind is TriggerKind.WEBHOOK:
        newest = await delivery_views.list_deliveries(
            look.conn,
            look.rule.workspace_id,
            look.rule.id,
            before=None,
            trigger_id=trigger.id,
            offset=0,
            limit=1,
        )
        if not newest:
            return [
                note(
                    "delivery",
                    "nothing_received",
                    "No webhook has been received yet: see at the provider what it sent and what it was answered.",
                )
            ]
        finding = await _delivery(look, newest[0].id)
    elif trigger is not None:
        run_id = await explain.find_planned_run(look.conn, trigger.id)
        if run_id is None:
            return None
        finding = await _run(look, run_id)
    else:
        found = await runs.list_runs(
            look.conn, look.rule.workspace_id, look.rule.id, before=None, offset=0, limit=1
        )
        if not found:
            return None
        finding = conclude("run", found[0].id, await explain_run(look, found[0]))
    return [
        note(finding.about, finding.verdict, f"The newest {finding.about} {finding.id}: {finding.summary}")
    ]


def _coming(triggers: list[Trigger]) -> str:
    times = [trigger.next_run_at for trigger in triggers if trigger.next_run_at is not None]
    coming = f" Its next occurrence is {when(min(times))}." if times else ""
    return f"Nothing stops it.{coming}"
