"""What an edit publishes and what it re-stamps: the table of S5.5, row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from autopilot.domain.ids import TriggerId, UserId
from autopilot.domain.rules import Publication, Rule, TriggerRule, publication
from autopilot.domain.states import (
    AssigneeType,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    TriggerKind,
)
from autopilot.kit.ids import uuid7

MORNING, HOOK, NEW = (TriggerId(uuid7()) for _ in range(3))
ALL = frozenset({MORNING, HOOK})
RULE = Rule(
    title="Review",
    description="Read it.",
    execution_mode=ExecutionMode.CREATE_ISSUE,
    issue_title_template=None,
    assignee_type=AssigneeType.AGENT,
    assignee_id=uuid7(),
    overlap_policy=OverlapPolicy.ALLOW,
    status=AutopilotStatus.ACTIVE,
    creator_id=UserId(uuid7()),
    triggers=[
        TriggerRule(
            id=MORNING,
            kind=TriggerKind.SCHEDULE,
            enabled=True,
            cron="0 9 * * *",
            timezone="UTC",
            catch_up="latest",
        ),
        TriggerRule(
            id=HOOK,
            kind=TriggerKind.WEBHOOK,
            enabled=True,
            provider="github",
            secret_fingerprint="aaaa",
            url_fingerprint="bbbb",
        ),
    ],
)


def edited(rule: Rule = RULE, **fields: Any) -> Rule:
    return msgspec.structs.replace(rule, **fields)


def with_trigger(trigger_id: TriggerId, **fields: Any) -> Rule:
    return edited(
        triggers=[
            msgspec.structs.replace(trigger, **fields) if trigger.id == trigger_id else trigger
            for trigger in RULE.triggers
        ]
    )


def test_a_new_rule_publishes_and_has_no_triggers_to_stamp() -> None:
    assert publication(None, edited(triggers=[])) == Publication(change="create")


def test_an_edit_that_changes_nothing_publishes_nothing() -> None:
    assert publication(RULE, edited()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Read it twice."},
        {"execution_mode": ExecutionMode.RUN_ONLY},
        {"issue_title_template": "On {{date}}"},
        {"assignee_id": uuid7()},
        {"assignee_type": AssigneeType.SQUAD, "assignee_id": uuid7()},
        {"overlap_policy": OverlapPolicy.SKIP},
    ],
    ids=lambda change: "+".join(change),
)
def test_a_change_of_substance_restamps_every_trigger(change: dict[str, Any]) -> None:
    found = publication(RULE, edited(**change))
    assert found is not None
    assert (found.restamps, found.keeps_publisher) == (ALL, False)
    assert set(change) <= set(found.change.removeprefix("edit ").split(", "))


def test_a_title_keeps_its_publisher_and_stamps_nothing() -> None:
    assert publication(RULE, edited(title="Review all")) == Publication(
        change="edit title", keeps_publisher=True
    )


def test_handing_over_publishes_and_stamps_nothing() -> None:
    """S5.8."""
    assert publication(RULE, edited(creator_id=UserId(uuid7()))) == Publication(change="hand over")


def test_a_title_changed_with_the_runbook_does_not_keep_its_publisher() -> None:
    found = publication(RULE, edited(title="Review all", description="Read all."))
    assert found is not None
    assert (found.keeps_publisher, found.restamps) == (False, ALL)


@pytest.mark.parametrize(
    ("before", "after", "change", "restamps"),
    [
        ("active", "paused", "pause", frozenset()),
        ("paused", "active", "resume", ALL),
        ("active", "archived", "archive", frozenset()),
        ("paused", "archived", "archive", frozenset()),
        ("archived", "active", "restore", ALL),
    ],
)
def test_a_change_of_status(before: str, after: str, change: str, restamps: frozenset[TriggerId]) -> None:
    assert publication(
        edited(status=AutopilotStatus(before)), edited(status=AutopilotStatus(after))
    ) == Publication(change=change, restamps=restamps)


def test_a_pause_together_with_a_change_of_substance_restamps_for_the_change() -> None:
    found = publication(RULE, edited(status=AutopilotStatus.PAUSED, description="Read less."))
    assert found == Publication(change="pause", restamps=ALL)


@pytest.mark.parametrize(
    ("trigger_id", "field", "value"),
    [
        (MORNING, "enabled", False),
        (MORNING, "cron", "0 8 * * *"),
        (MORNING, "timezone", "Europe/Berlin"),
        (MORNING, "catch_up", "none"),
        (MORNING, "lateness_s", 600),
        (HOOK, "event_filters", [{"event": "push"}]),
        (HOOK, "provider", "generic"),
        (HOOK, "pace_per_min", 5),
        (HOOK, "secret_fingerprint", "cccc"),
        (HOOK, "secret_fingerprint", None),
        (HOOK, "previous_secret_until", datetime(2026, 6, 1, tzinfo=UTC)),
        (HOOK, "url_fingerprint", "dddd"),
    ],
)
def test_a_change_of_one_trigger_restamps_that_one(trigger_id: TriggerId, field: str, value: object) -> None:
    found = publication(RULE, with_trigger(trigger_id, **{field: value}))
    assert found == Publication(change="edit trigger", restamps=frozenset({trigger_id}))


def test_a_new_trigger_is_the_only_one_stamped() -> None:
    added = TriggerRule(id=NEW, kind=TriggerKind.WEBHOOK, enabled=True, provider="generic")
    assert publication(RULE, edited(triggers=[*RULE.triggers, added])) == Publication(
        change="add trigger", restamps=frozenset({NEW})
    )


def test_a_deleted_trigger_stamps_nothing() -> None:
    assert publication(RULE, edited(triggers=RULE.triggers[:1])) == Publication(change="delete trigger")
