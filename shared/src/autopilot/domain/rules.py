"""The effective rule as a value: what a rule version holds, and what an edit publishes and re-stamps (S5.4, S5.5)."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from autopilot.domain.ids import TriggerId, UserId
from autopilot.domain.states import AssigneeType, AutopilotStatus, ExecutionMode, OverlapPolicy, TriggerKind


class TriggerRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trigger's configuration without secrets; a fingerprint stands where a secret matters. The label is not in it."""

    id: TriggerId
    kind: TriggerKind
    enabled: bool
    cron: str | None = None
    timezone: str | None = None
    catch_up: str | None = None
    lateness_s: int | None = None
    provider: str | None = None
    event_filters: list[dict[str, Any]] | None = None
    pace_per_min: int | None = None
    secret_fingerprint: str | None = None
    previous_secret_until: datetime | None = None
    url_fingerprint: str | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The whole effective rule, as a version stores it; `triggers` are the live ones, ordered by id."""

    title: str
    description: str
    execution_mode: ExecutionMode
    issue_title_template: str | None
    assignee_type: AssigneeType | None
    assignee_id: UUID | None
    overlap_policy: OverlapPolicy
    status: AutopilotStatus
    creator_id: UserId
    triggers: list[TriggerRule] = []


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit does to the history of the rule.

    `change` names the edit in a word or two. `keeps_publisher`: the publisher of the version before stays (a title).
    `restamps`: the triggers whose publisher becomes the editor.
    """

    change: str
    keeps_publisher: bool = False
    restamps: frozenset[TriggerId] = frozenset()


# Fields whose change hands the responsibility for every trigger to the editor.
_SUBSTANCE = (
    "execution_mode",
    "description",
    "issue_title_template",
    "assignee_type",
    "assignee_id",
    "overlap_policy",
)


def publication(before: Rule | None, after: Rule) -> Publication | None:
    """Compare stored values before and after an edit, as S5.5's table says; None publishes nothing.

    `before` is None for a rule just created.
    """
    if before is None:
        return Publication(change="create")
    if before == after:
        return None
    old, new = {t.id: t for t in before.triggers}, {t.id: t for t in after.triggers}
    touched = frozenset(i for i, t in new.items() if old.get(i) != t)
    everything = frozenset(new)
    changed = [name for name in _SUBSTANCE if getattr(before, name) != getattr(after, name)]
    if before.status is not after.status:
        return _status_change(before, after, changed, everything, touched)
    if changed:
        return Publication(change="edit " + ", ".join(changed), restamps=everything)
    if old.keys() != new.keys():
        return Publication(
            change="add trigger" if new.keys() - old.keys() else "delete trigger", restamps=touched
        )
    if touched:
        return Publication(change="edit trigger", restamps=touched)
    if before.creator_id != after.creator_id:
        return Publication(change="hand over")
    return Publication(change="edit title", keeps_publisher=True)


def _status_change(
    before: Rule,
    after: Rule,
    changed: list[str],
    everything: frozenset[TriggerId],
    touched: frozenset[TriggerId],
) -> Publication:
    match after.status:
        case AutopilotStatus.ACTIVE:
            return Publication(
                change="resume" if before.status is AutopilotStatus.PAUSED else "restore", restamps=everything
            )
        case AutopilotStatus.PAUSED:
            return Publication(change="pause", restamps=everything if changed else touched)
        case AutopilotStatus.ARCHIVED:
            return Publication(change="archive", restamps=everything if changed else touched)
