"""Admission is one pure decision: the order of its stops, who is judged, and what each outcome carries (S4)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from autopilot.domain.admission import Actor, Executor, Overlap, Snapshot, TriggerFacts, admit, judge
from autopilot.domain.attribution import Candidate
from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    RuleVersionId,
    RuntimeId,
    SquadId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import (
    AssigneeType,
    AttributionPolicy,
    AttributionSource,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    ReasonCode,
    Source,
)

NOW = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
CREATOR, PUBLISHER, OWNER, CLICKER, RULE_OWNER = (UserId(UUID(int=n)) for n in range(1, 6))

EXECUTOR = Executor(
    agent_id=AgentId(UUID(int=20)),
    agent_archived=False,
    agent_owner_id=OWNER,
    agent_owner_present=True,
    agent_visibility="workspace",
    creator_has_share=False,
    runtime_id=RuntimeId(UUID(int=21)),
    runtime_seen_at=NOW - timedelta(seconds=10),
    runtime_usable=True,
)
SNAPSHOT = Snapshot(
    workspace_id=WorkspaceId(UUID(int=10)),
    autopilot_id=AutopilotId(UUID(int=11)),
    autopilot_rev=1,
    autopilot_status=AutopilotStatus.ACTIVE,
    execution_mode=ExecutionMode.RUN_ONLY,
    overlap_policy=OverlapPolicy.ALLOW,
    assignee_type=AssigneeType.AGENT,
    squad_id=None,
    executor=EXECUTOR,
    creator_id=CREATOR,
    rule_owner=Candidate(user_id=RULE_OWNER, present=True),
    attribution_policy=AttributionPolicy.OWNER_FALLBACK,
    rule_version=1,
    rule_version_id=RuleVersionId(UUID(int=12)),
    trigger=TriggerFacts(
        trigger_id=TriggerId(UUID(int=13)), enabled=True, publisher=Candidate(user_id=PUBLISHER, present=True)
    ),
)
BY_SCHEDULE = Actor(source=Source.SCHEDULE)


def with_(snapshot: Snapshot = SNAPSHOT, executor: dict[str, Any] | None = None, **changes: Any) -> Snapshot:
    inner = msgspec.structs.replace(snapshot.executor, **(executor or {}))
    return msgspec.structs.replace(snapshot, executor=inner, **changes)


# Each step of S4.1 in order: what breaks it, and the code it must give.
STEPS: list[tuple[str, dict[str, Any], dict[str, Any], ReasonCode]] = [
    ("autopilot", {"autopilot_status": AutopilotStatus.PAUSED}, {}, ReasonCode.AUTOPILOT_PAUSED),
    (
        "trigger",
        {"trigger": TriggerFacts(trigger_id=TriggerId(UUID(int=13)), enabled=False, publisher=None)},
        {},
        ReasonCode.TRIGGER_DISABLED,
    ),
    ("agent", {}, {"agent_archived": True}, ReasonCode.TARGET_UNAVAILABLE),
    ("runtime bound", {}, {"runtime_id": None}, ReasonCode.AGENT_RUNTIME_REQUIRED),
    ("runtime usable", {}, {"runtime_usable": False}, ReasonCode.RUNTIME_UNUSABLE),
    ("invoke", {}, {"agent_visibility": "private"}, ReasonCode.INVOCATION_NOT_ALLOWED),
]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(STEPS)), 2)))
def test_of_two_broken_facts_the_earlier_step_wins(first: int, second: int) -> None:
    """S4.1: the order of the steps is the order of the answer."""
    changes: dict[str, Any] = {**STEPS[second][1], **STEPS[first][1]}
    executor: dict[str, Any] = {**STEPS[second][2], **STEPS[first][2]}
    assert admit(with_(executor=executor, **changes), BY_SCHEDULE, NOW).code is STEPS[first][3]


@pytest.mark.parametrize(("name", "changes", "executor", "code"), STEPS, ids=[s[0] for s in STEPS])
def test_each_step_stops_alone(
    name: str, changes: dict[str, Any], executor: dict[str, Any], code: ReasonCode
) -> None:
    """S4.2: every stop has its code and a text for people."""
    decision = admit(with_(executor=executor, **changes), BY_SCHEDULE, NOW)
    assert decision.code is code
    assert decision.text


def test_a_healthy_rule_is_admitted_for_its_triggers_publisher() -> None:
    """S5.2: nobody is there for a schedule, the trigger's publisher answers."""
    decision = admit(SNAPSHOT, BY_SCHEDULE, NOW)
    assert decision.outcome == "admit"
    assert decision.agent_id == EXECUTOR.agent_id
    assert decision.attribution is not None
    assert decision.attribution.originator is None
    assert decision.attribution.source is AttributionSource.TRIGGER_OWNER


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"autopilot_status": AutopilotStatus.PAUSED}, ReasonCode.AUTOPILOT_PAUSED),
        ({"autopilot_status": AutopilotStatus.ARCHIVED}, ReasonCode.AUTOPILOT_ARCHIVED),
    ],
)
def test_a_rule_that_is_off_makes_no_run(changes: dict[str, Any], code: ReasonCode) -> None:
    """S4.2: the first two stops speak before a run exists."""
    decision = admit(with_(**changes), BY_SCHEDULE, NOW)
    assert (decision.outcome, decision.code) == ("stop", code)


def test_no_assignee_and_a_squad_without_leader_are_unavailable_targets() -> None:
    """S4.1: assignee set, squad resolves."""
    nobody = with_(assignee_type=None, executor={"agent_id": None})
    leaderless = with_(
        assignee_type=AssigneeType.SQUAD, squad_id=SquadId(UUID(int=30)), executor={"agent_id": None}
    )
    archived = with_(
        assignee_type=AssigneeType.SQUAD, squad_id=SquadId(UUID(int=30)), executor={"squad_archived": True}
    )
    for snapshot in (nobody, leaderless, archived):
        decision = admit(snapshot, BY_SCHEDULE, NOW)
        assert (decision.outcome, decision.code) == ("skip", ReasonCode.TARGET_UNAVAILABLE)


@pytest.mark.parametrize(("age_s", "online"), [(0, True), (45, True), (45.001, False), (None, False)])
def test_a_runtime_is_online_for_45_seconds_after_its_heartbeat(age_s: float | None, online: bool) -> None:
    """S4.3: run_only is skipped while the runtime is offline."""
    seen = NOW - timedelta(seconds=age_s) if age_s is not None else None
    decision = admit(with_(executor={"runtime_seen_at": seen}), BY_SCHEDULE, NOW)
    assert (decision.code is None) is online
    if not online:
        assert decision.code is ReasonCode.RUNTIME_OFFLINE
        assert decision.text is not None
        assert decision.text.endswith("at dispatch time")


def test_an_offline_runtime_does_not_stop_an_issue_but_an_unusable_one_does() -> None:
    """S4.3, S3.1: offline is waitable for create_issue, unusable never is, and its repair hint is kept."""
    issue = with_(execution_mode=ExecutionMode.CREATE_ISSUE, executor={"runtime_seen_at": None})
    assert admit(issue, BY_SCHEDULE, NOW).outcome == "admit"
    broken = with_(
        issue,
        executor={
            "runtime_usable": False,
            "runtime_detail": "no binary",
            "runtime_repair_hint": "install it",
        },
    )
    decision = admit(broken, BY_SCHEDULE, NOW)
    assert decision.code is ReasonCode.RUNTIME_UNUSABLE
    assert decision.text is not None
    assert "no binary" in decision.text
    assert "install it" in decision.text
    assert decision.text.endswith("at dispatch time")


@pytest.mark.parametrize(
    ("actor", "executor", "allowed"),
    [
        (Actor(source=Source.MANUAL, clicker=OWNER), {"agent_visibility": "private"}, True),
        (Actor(source=Source.MANUAL, clicker=CLICKER), {"agent_visibility": "private"}, False),
        (
            Actor(source=Source.MANUAL, clicker=CLICKER, clicker_has_share=True),
            {"agent_visibility": "private"},
            True,
        ),
        (Actor(source=Source.MANUAL, clicker=CLICKER), {"agent_visibility": "workspace"}, True),
        (
            Actor(source=Source.MANUAL, clicker=CLICKER),
            {"agent_visibility": "private", "creator_has_share": True},
            False,
        ),
        (Actor(source=Source.API), {"agent_visibility": "private", "creator_has_share": True}, True),
        (Actor(source=Source.SCHEDULE), {"agent_visibility": "private"}, False),
        (Actor(source=Source.WEBHOOK), {"agent_visibility": "private", "agent_owner_id": CREATOR}, True),
    ],
)
def test_permission_is_judged_for_the_clicker_or_the_creator(
    actor: Actor, executor: dict[str, Any], allowed: bool
) -> None:
    """S4.4, AT1, AT2: manual runs for who pressed the button, automated ones for the creator."""
    assert (admit(with_(executor=executor), actor, NOW).code is None) is allowed


def test_attribution_falls_from_trigger_to_rule_to_owner_and_then_blocks() -> None:
    """S5.2: a publisher who left does not count; nobody is invented."""
    gone = Candidate(user_id=PUBLISHER, present=False)
    trigger = TriggerFacts(trigger_id=TriggerId(UUID(int=13)), enabled=True, publisher=gone)
    by_rule = admit(with_(trigger=trigger), BY_SCHEDULE, NOW)
    no_rule = with_(trigger=trigger, rule_owner=Candidate(user_id=RULE_OWNER, present=False))
    by_owner = admit(no_rule, BY_SCHEDULE, NOW)
    blocked = admit(with_(no_rule, attribution_policy=AttributionPolicy.BLOCK), BY_SCHEDULE, NOW)
    owner_left = admit(with_(no_rule, executor={"agent_owner_present": False}), BY_SCHEDULE, NOW)
    assert by_rule.attribution is not None
    assert (by_rule.attribution.accountable, by_rule.attribution.source) == (
        RULE_OWNER,
        AttributionSource.RULE_OWNER,
    )
    assert by_owner.attribution is not None
    assert (by_owner.attribution.accountable, by_owner.attribution.source) == (
        OWNER,
        AttributionSource.OWNER_FALLBACK,
    )
    assert (blocked.outcome, blocked.code) == ("skip", ReasonCode.ATTRIBUTION_BLOCKED)
    assert owner_left.code is ReasonCode.ATTRIBUTION_BLOCKED


def test_a_manual_run_belongs_to_who_clicked() -> None:
    """S5.2: originator and accountable are the same person."""
    decision = admit(with_(trigger=None), Actor(source=Source.MANUAL, clicker=CLICKER), NOW)
    assert decision.attribution is not None
    assert decision.attribution.originator == decision.attribution.accountable == CLICKER
    assert decision.attribution.source is AttributionSource.DIRECT_HUMAN


@pytest.mark.parametrize(
    ("policy", "overlap", "outcome"),
    [
        (OverlapPolicy.ALLOW, Overlap(live=True), "admit"),
        (OverlapPolicy.SKIP, Overlap(live=False), "admit"),
        (OverlapPolicy.SKIP, Overlap(live=True), "skip"),
        (OverlapPolicy.QUEUE_ONE, Overlap(live=False), "admit"),
        (OverlapPolicy.QUEUE_ONE, Overlap(live=True), "park"),
        (OverlapPolicy.QUEUE_ONE, Overlap(live=True, parked=True), "skip"),
    ],
)
def test_overlap_judges_schedule_occurrences_only(
    policy: OverlapPolicy, overlap: Overlap, outcome: str
) -> None:
    """S3.6, DU13: every policy value; webhook, manual and api runs are never dropped by it."""
    snapshot = with_(overlap_policy=policy)
    decision = admit(snapshot, BY_SCHEDULE, NOW, overlap)
    assert decision.outcome == outcome
    assert (decision.code is ReasonCode.ALREADY_ACTIVE) is (outcome == "skip")
    for source in (Source.WEBHOOK, Source.API):
        assert admit(snapshot, Actor(source=source), NOW, overlap).outcome == "admit"


def test_dispatch_looks_at_readiness_but_not_at_the_rules_state() -> None:
    """S4.6: an answer of accepted stands although the rule was paused a moment later."""
    paused = with_(autopilot_status=AutopilotStatus.PAUSED)
    assert judge(paused, BY_SCHEDULE, NOW).outcome == "admit"
    assert judge(with_(paused, executor={"agent_archived": True}), BY_SCHEDULE, NOW).outcome == "skip"
