"""The one way a rule is written: version, publishers, next runs and rows in the caller's transaction (S5.3 to S5.7, S7.9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from autopilot.domain import cron
from autopilot.domain.errors import InvalidValue, NotFound
from autopilot.domain.ids import AutopilotId, RuleVersionId, UserId, WorkspaceId
from autopilot.domain.rules import Publication, Rule, TriggerRule, publication
from autopilot.domain.states import AutopilotStatus, TriggerKind
from autopilot.engine.secrets import fingerprint
from autopilot.kit.ids import uuid7
from autopilot.storage import autopilots, facts, triggers, versions
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn
from autopilot.storage.triggers import Trigger
from autopilot.storage.versions import Publisher

_WHEN = ("cron", "timezone", "enabled", "deleted_at")


class HeldRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and its triggers, ordered by id: as read under their locks, or as they are to become."""

    autopilot: Autopilot
    triggers: tuple[Trigger, ...] = ()


async def hold_rules(conn: Conn, workspace_id: WorkspaceId, ids: Sequence[AutopilotId]) -> list[HeldRule]:
    """Lock rules, then their live triggers, each level in id order; rules that do not exist are left out."""
    held = await autopilots.lock_rules(conn, workspace_id, ids)
    found = await triggers.lock_triggers(conn, workspace_id, [autopilot.id for autopilot in held])
    return [HeldRule(autopilot=autopilot, triggers=tuple(found[autopilot.id])) for autopilot in held]


async def hold_rule(conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId) -> HeldRule:
    """One rule under its locks; NotFound outside the workspace."""
    held = await hold_rules(conn, workspace_id, [autopilot_id])
    if not held:
        raise NotFound("There is no such autopilot.")
    return held[0]


async def save_rule(conn: Conn, before: HeldRule | None, after: HeldRule, editor: UserId | None) -> HeldRule:
    """Write what an edit changed, with the version it publishes; the rule as it now stands.

    `before` is None for a new rule, else what `hold_rule` gave. `editor` is None for the system, which publishes but
    answers for nothing. An edit that changes nothing writes nothing.
    """
    if before == after:
        return after
    now = await facts.database_now(conn)
    published = publication(rule_of(before) if before is not None else None, rule_of(after))
    after = _scheduled(before, after, now)
    publisher: Publisher | None = None
    if published is not None:
        publisher = await _publisher(conn, after.autopilot, published, editor)
        after = _stamped(before, after, published, publisher, editor)
    after = _revised(before, after, now)
    await _write(conn, before, after)
    if published is not None and publisher is not None:
        await versions.insert_version(
            conn,
            after.autopilot.workspace_id,
            after.autopilot.id,
            version_id=after.autopilot.version_id,
            version=after.autopilot.version,
            publisher=publisher,
            edited_by=editor,
            change=published.change,
            rule=rule_of(after),
        )
    return after


def rule_of(held: HeldRule) -> Rule:
    """The effective rule as a version holds it: live triggers, fingerprints where a secret matters."""
    autopilot = held.autopilot
    return Rule(
        title=autopilot.title,
        description=autopilot.description,
        execution_mode=autopilot.execution_mode,
        issue_title_template=autopilot.issue_title_template,
        assignee_type=autopilot.assignee_type,
        assignee_id=autopilot.assignee_id,
        overlap_policy=autopilot.overlap_policy,
        status=autopilot.status,
        creator_id=autopilot.creator_id,
        triggers=[_trigger_rule(trigger) for trigger in _live(held)],
    )


def _trigger_rule(trigger: Trigger) -> TriggerRule:
    return TriggerRule(
        id=trigger.id,
        kind=trigger.kind,
        enabled=trigger.enabled,
        cron=trigger.cron,
        timezone=trigger.timezone,
        catch_up=trigger.catch_up,
        lateness_s=trigger.lateness_s,
        provider=trigger.provider,
        event_filters=trigger.event_filters,
        pace_per_min=trigger.pace_per_min,
        secret_fingerprint=trigger.secret_fingerprint,
        previous_secret_until=trigger.previous_secret_until,
        url_fingerprint=fingerprint(trigger.token_hash) if trigger.token_hash is not None else None,
    )


def _live(held: HeldRule) -> list[Trigger]:
    return sorted((t for t in held.triggers if t.deleted_at is None), key=lambda trigger: trigger.id)


async def _publisher(
    conn: Conn, autopilot: Autopilot, published: Publication, editor: UserId | None
) -> Publisher:
    if editor is None:
        return Publisher(publisher_type="system", published_by=None)
    if published.keeps_publisher:
        return await versions.find_publisher(conn, autopilot.version_id)
    return Publisher(publisher_type="user", published_by=editor)


def _stamped(
    before: HeldRule | None,
    after: HeldRule,
    published: Publication,
    publisher: Publisher,
    editor: UserId | None,
) -> HeldRule:
    """The new version's number, id and owner, and its publisher on the triggers it re-stamps."""
    autopilot = msgspec.structs.replace(
        after.autopilot,
        version=before.autopilot.version + 1 if before is not None else 1,
        version_id=RuleVersionId(uuid7()),
        rule_owner_id=publisher.published_by or after.autopilot.rule_owner_id,
    )
    known = {trigger.id for trigger in before.triggers} if before is not None else set()
    restamped = published.restamps if editor is not None else frozenset()
    stamp = {"published_by": editor, "published_version_id": autopilot.version_id}
    return HeldRule(
        autopilot=autopilot,
        triggers=tuple(
            msgspec.structs.replace(trigger, **stamp)
            if trigger.id in restamped or trigger.id not in known
            else trigger
            for trigger in after.triggers
        ),
    )


def _scheduled(before: HeldRule | None, after: HeldRule, now: datetime) -> HeldRule:
    """Give schedules whose time changed their next future occurrence, never a past one (S7.10)."""
    status_changed = before is not None and before.autopilot.status is not after.autopilot.status
    active = after.autopilot.status is AutopilotStatus.ACTIVE
    old = {trigger.id: trigger for trigger in before.triggers} if before is not None else {}
    return msgspec.structs.replace(
        after,
        triggers=tuple(
            _rescheduled(trigger, active=active, is_new=trigger.id not in old, now=now)
            if trigger.kind is TriggerKind.SCHEDULE
            and (status_changed or _differs(old.get(trigger.id), trigger, _WHEN))
            else trigger
            for trigger in after.triggers
        ),
    )


def _rescheduled(trigger: Trigger, *, active: bool, is_new: bool, now: datetime) -> Trigger:
    next_run_at: datetime | None = None
    error: str | None = None
    if active and trigger.enabled and trigger.deleted_at is None:
        try:
            schedule, zone = cron.parse(trigger.cron or ""), cron.zone(trigger.timezone or "")
            next_run_at = cron.next_after(schedule, zone, now)
        except InvalidValue as refused:
            # Saved by a release whose rules or timezones differed: it stops here alone, and says why.
            error = f"{refused.field}: {refused.message}"
    return msgspec.structs.replace(
        trigger,
        next_run_at=next_run_at,
        schedule_error=error,
        schedule_rev=trigger.schedule_rev if is_new else trigger.schedule_rev + 1,
        tzdata_version=cron.tzdata_version(),
    )


def _revised(before: HeldRule | None, after: HeldRule, now: datetime) -> HeldRule:
    """Count the edit on every row that differs."""
    if before is None:
        return after
    old = {trigger.id: trigger for trigger in before.triggers}
    autopilot = after.autopilot
    if autopilot != before.autopilot:
        autopilot = msgspec.structs.replace(autopilot, rev=autopilot.rev + 1, updated_at=now)
    return HeldRule(
        autopilot=autopilot,
        triggers=tuple(
            msgspec.structs.replace(trigger, rev=trigger.rev + 1, updated_at=now)
            if trigger.id in old and trigger != old[trigger.id]
            else trigger
            for trigger in after.triggers
        ),
    )


async def _write(conn: Conn, before: HeldRule | None, after: HeldRule) -> None:
    if before is None:
        await autopilots.insert_autopilot(conn, after.autopilot)
    elif after.autopilot != before.autopilot:
        await autopilots.update_autopilot(conn, after.autopilot)
    old = {trigger.id: trigger for trigger in before.triggers} if before is not None else {}
    for trigger in after.triggers:
        if trigger.id not in old:
            await triggers.insert_trigger(conn, trigger)
        elif trigger != old[trigger.id]:
            await triggers.update_trigger(conn, trigger)


def _differs(old: Trigger | None, new: Trigger, fields: Sequence[str]) -> bool:
    return old is None or any(getattr(old, field) != getattr(new, field) for field in fields)
