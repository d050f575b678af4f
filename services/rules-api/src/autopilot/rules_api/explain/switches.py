"""What turns a rule or a trigger off, with the version that did: paused, archived, disabled, unreadable."""

from __future__ import annotations

from datetime import datetime

from autopilot.domain.states import AutopilotStatus, ReasonCode
from autopilot.rules_api.explain.checks import Check, stop
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.storage import explain
from autopilot.storage.explain import Trigger


async def off(look: Look, status: AutopilotStatus, at: datetime) -> Check:
    """The rule itself was paused or archived."""
    code = ReasonCode.AUTOPILOT_PAUSED if status is AutopilotStatus.PAUSED else ReasonCode.AUTOPILOT_ARCHIVED
    change = await explain.find_status_change(look.conn, look.rule.id, status.value, at)
    told = f" since {await look.version(change)}" if change is not None else ""
    newest = await explain.find_status_change(look.conn, look.rule.id, status.value, look.now)
    lasts = change is not None and newest is not None and newest.version == change.version
    reason = look.rule.pause_reason if lasts and look.rule.status is status else None
    why = f"; the reason given is {reason.value}" if reason is not None else ""
    return stop(
        "autopilot",
        code.value,
        f"The autopilot was {status.value}{told}{why}.",
        next_step(code),
        status=status.value,
        pause_reason=reason,
        rule_version=change.version if change is not None else None,
        since=change.published_at if change is not None else None,
    )


async def disabled(look: Look, trigger: Trigger, at: datetime) -> Check:
    """The trigger was off."""
    change = await explain.find_disabling(look.conn, look.rule.id, trigger.id, at)
    told = f" since {await look.version(change)}" if change is not None else ""
    return stop(
        "trigger",
        ReasonCode.TRIGGER_DISABLED.value,
        f"The trigger was disabled{told}.",
        next_step(ReasonCode.TRIGGER_DISABLED),
        trigger_id=trigger.id,
        rule_version=change.version if change is not None else None,
        since=change.published_at if change is not None else None,
    )


def broken(trigger: Trigger, message: str) -> Check:
    return stop(
        "cron",
        "schedule_error",
        f"The schedule cannot be read, so the trigger stands still: {message}",
        "Save a cron expression and a timezone that the preview accepts.",
        trigger_id=trigger.id,
        cron=trigger.cron,
        timezone=trigger.timezone,
        schedule_error=message,
    )
