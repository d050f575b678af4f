"""Whether a schedule trigger had an occurrence at a minute, and what became of it (S8, S7.9 to S7.12)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from autopilot.domain import cron
from autopilot.domain.cron import CronSchedule, Zone
from autopilot.domain.ids import RunId
from autopilot.domain.rules import TriggerRule
from autopilot.domain.states import AutopilotStatus, ReasonCode
from autopilot.rules_api.explain.checks import MINUTE, Check, note, ok, stop, when
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.plans import settled, unplanned
from autopilot.rules_api.explain.switches import broken, disabled, off
from autopilot.storage import explain
from autopilot.storage.explain import Trigger, Version

_INSTANT: Final = timedelta(seconds=1)
_OFF: Final = (ReasonCode.AUTOPILOT_PAUSED, ReasonCode.AUTOPILOT_ARCHIVED, ReasonCode.TRIGGER_DISABLED)
_SEARCHED: Final = tuple(timedelta(days=days) for days in (1, 8, 62, 800, 4_000))


class Occurrence:
    """What was found about one trigger at one minute: the checks, whether the cron fires then, and the run.

    `off`: it would have fired, had it not been turned off.
    """

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.fires = False
        self.off = False
        self.run_id: RunId | None = None


async def look_at(look: Look, trigger: Trigger, minute: datetime) -> Occurrence:
    """Walk from the rule as it was then to the plan of that minute; the run itself is explained by the caller."""
    found = Occurrence()
    runs = await explain.list_planned_runs(look.conn, trigger.id, minute, minute + MINUTE)
    found.run_id = runs[0].id if runs else None
    plan = await explain.find_plan(look.conn, trigger.id, minute)
    if plan is not None and plan.plan_time < minute + MINUTE:
        found.fires = True
        version = await look.version_at(plan.started_at)
        if version is not None:
            found.checks.append(await _said(look, version, trigger, minute))
        found.checks.append(settled(look, trigger, plan))
        return found
    if found.run_id is not None:  # runs are kept longer than their plans
        found.fires = True
        return found
    stopped = await _not_in_force(look, found, trigger, minute)
    setting = await _setting(look, trigger, minute)
    read = _read(setting.cron, setting.timezone, trigger)
    if stopped is not None:
        found.checks.append(stopped)
        found.off = (
            stopped.code in _OFF
            and not isinstance(read, Check)
            and cron.next_after(*read, minute - _INSTANT) == minute
        )
        return found
    if isinstance(read, Check):
        found.checks.append(read)
        return found
    schedule, zone = read
    found.checks.append(_fires(schedule, zone, setting, minute))
    found.fires = found.checks[-1].code == "cron_fires"
    if found.fires:
        found.checks.append(await unplanned(look, trigger, schedule, zone, minute, plan))
    return found


async def _said(look: Look, version: Version, trigger: Trigger, minute: datetime) -> Check:
    setting = _of(version, trigger)
    said = f"`{setting.cron}` in {setting.timezone}" if setting is not None else "nothing of this trigger"
    zone = zone_of(setting.timezone) if setting is not None else None
    return ok(
        "cron",
        "cron_fires",
        f"{await look.version(version)} said {said}: it was planned for {when(minute, zone)}.",
        rule_version=version.version,
        cron=setting.cron if setting is not None else None,
        timezone=setting.timezone if setting is not None else None,
        planned_at=minute,
    )


async def _not_in_force(look: Look, found: Occurrence, trigger: Trigger, minute: datetime) -> Check | None:
    """Why the trigger could not plan anything at that minute, whatever its cron says."""
    if trigger.created_at > minute:
        return stop(
            "trigger",
            "trigger_not_there_yet",
            f"The trigger was made later, {when(trigger.created_at)}.",
            created_at=trigger.created_at,
        )
    if trigger.deleted_at is not None and trigger.deleted_at <= minute:
        return stop(
            "trigger",
            "trigger_deleted",
            f"The trigger was deleted before, {when(trigger.deleted_at)}.",
            "Add a trigger again if it is wanted.",
            deleted_at=trigger.deleted_at,
        )
    at = min(minute, look.now)
    version = await look.version_at(at)
    if version is None:
        return None
    if version.rule.status is not AutopilotStatus.ACTIVE:
        return await off(look, version.rule.status, at)
    setting = _of(version, trigger)
    if setting is not None and not setting.enabled:
        return await disabled(look, trigger, at)
    found.checks.append(
        ok(
            "autopilot",
            "active",
            f"The autopilot and the trigger were on, by {await look.version(version)}.",
            rule_version=version.version,
        )
    )
    return None


async def _setting(look: Look, trigger: Trigger, minute: datetime) -> TriggerRule | Trigger:
    """The trigger's schedule as it was then; as it is where no version tells."""
    version = await look.version_at(min(minute, look.now))
    return (_of(version, trigger) if version is not None else None) or trigger


def zone_of(name: str | None) -> Zone | None:
    """The zone of that name, if there is one; one that was may be known no more."""
    try:
        return cron.zone(name or "")
    except cron.InvalidTimezone:
        return None


def _of(version: Version, trigger: Trigger) -> TriggerRule | None:
    return next((said for said in version.rule.triggers if said.id == trigger.id), None)


def _read(expr: str | None, name: str | None, trigger: Trigger) -> tuple[CronSchedule, Zone] | Check:
    """The cron and its zone, or why nobody can read them."""
    try:
        return cron.parse(expr or ""), cron.zone(name or "")
    except (cron.InvalidCron, cron.InvalidTimezone) as error:
        return broken(trigger, error.message)


def _fires(schedule: CronSchedule, zone: Zone, setting: TriggerRule | Trigger, minute: datetime) -> Check:
    """Whether the cron has an occurrence in that minute, and where its neighbours are if not."""
    following = cron.next_after(schedule, zone, minute - _INSTANT)
    facts: dict[str, Any] = {
        "cron": setting.cron,
        "timezone": setting.timezone,
        "local_time": when(minute, zone),
    }
    said = f"`{setting.cron}` in {setting.timezone}"
    if following == minute:
        return ok("cron", "cron_fires", f"{said} has an occurrence at {when(minute, zone)}.", **facts)
    if following is None:
        return stop(
            "cron",
            "cron_never_matches",
            f"{said} matches no date there is.",
            "Save a cron expression for which the preview shows times.",
            **facts,
        )
    before = newest_before(schedule, zone, minute)
    near = f"the next after it is {when(following, zone)}"
    if before is not None:
        near = f"the last before it was {when(before, zone)}, {near}"
    facts |= {"previous": before, "next": following}
    utc = cron.zone("UTC")
    if cron.next_after(schedule, utc, minute - _INSTANT) == minute:
        return stop(
            "cron",
            "cron_timezone",
            f"`{setting.cron}` is read in {setting.timezone}, where that minute was {when(minute, zone)}; {near}."
            " In UTC it would have matched.",
            "Set the trigger's timezone to UTC, or write the hours of its timezone into the cron.",
            **facts,
        )
    return stop(
        "cron",
        "cron_no_match",
        f"{said} has no occurrence at {when(minute, zone)}: {near}.",
        "See `autopilot cron-preview` for the times of an expression.",
        **facts,
    )


def newest_before(schedule: CronSchedule, zone: Zone, minute: datetime) -> datetime | None:
    """The newest occurrence before a minute, looked for in stretches that grow."""
    last = minute - timedelta(microseconds=1)
    for back in _SEARCHED:
        known = cron.next_after(schedule, zone, minute - back)
        if known is not None and known < minute:
            return cron.newest_until(schedule, zone, known=known, until=last)
    return None


async def twins(look: Look, trigger: Trigger, minute: datetime) -> Check | None:
    """Another run at the same time of day by the wall clock, where clocks went back in between."""
    zone = zone_of(trigger.timezone)
    if zone is None:
        return None
    near = timedelta(hours=3)
    runs = await explain.list_planned_runs(look.conn, trigger.id, minute - near, minute + near)
    local = minute.astimezone(zone.info).replace(tzinfo=None)
    same = [
        run
        for run in runs
        if run.planned_at is not None
        and run.planned_at != minute
        and run.planned_at.astimezone(zone.info).replace(tzinfo=None) == local
    ]
    if not same or same[0].planned_at is None:
        return None
    return note(
        "cron",
        "same_local_time",
        f"Clocks went back in {zone.key}: {when(minute, zone)} and {when(same[0].planned_at, zone)} read the same on the"
        " wall. A schedule of hours or minutes that repeat runs in both; one at a fixed time runs once.",
        run_ids=[run.id for run in same],
    )
