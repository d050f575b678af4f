"""The one admission decision of all services: a snapshot of facts in, admitted or the first reason against it out (S4)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from autopilot.domain.attribution import Attribution, Candidate, attribute
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
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    ReasonCode,
    Source,
)

ONLINE_WITHIN = timedelta(seconds=45)


class Executor(msgspec.Struct, frozen=True, kw_only=True):
    """Who would execute for an assignee right now, and what readiness and permission judge of them.

    `agent_id` is None when nothing resolves; `runtime_seen_at` is the last heartbeat by the database's clock.
    """

    squad_archived: bool = False
    agent_id: AgentId | None
    agent_archived: bool
    agent_owner_id: UserId | None
    agent_owner_present: bool
    agent_visibility: str | None
    creator_has_share: bool
    runtime_id: RuntimeId | None
    runtime_seen_at: datetime | None
    runtime_usable: bool
    runtime_detail: str | None = None
    runtime_repair_hint: str | None = None


class TriggerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What admission judges of a trigger; a deleted one counts as disabled."""

    trigger_id: TriggerId
    enabled: bool
    publisher: Candidate | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Every fact that admission judges about one autopilot, read in one statement."""

    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    autopilot_rev: int
    autopilot_status: AutopilotStatus
    execution_mode: ExecutionMode
    overlap_policy: OverlapPolicy
    assignee_type: AssigneeType | None
    squad_id: SquadId | None
    executor: Executor
    creator_id: UserId
    rule_owner: Candidate
    attribution_policy: AttributionPolicy
    rule_version: int
    rule_version_id: RuleVersionId
    trigger: TriggerFacts | None = None


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who or what asks. `clicker` is the person of a manual run, `clicker_has_share` whether the agent is shared with them."""

    source: Source
    clicker: UserId | None = None
    clicker_has_share: bool = False


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """What is in flight, read under the autopilot's lock (S3.6): a live run, and a run already parked behind it."""

    live: bool = False
    parked: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one firing.

    `admit`: a pending run with a queue entry. `park`: a pending run whose entry waits for the live one (queue_one).
    `skip`: a skipped run with `code` and `text`. `stop`: no run at all; the rule or trigger is off (S4.2).
    `attribution` is None only where nobody answers; `agent_id` is the executor found, None where none was.
    """

    outcome: Literal["admit", "park", "skip", "stop"]
    code: ReasonCode | None = None
    text: str | None = None
    attribution: Attribution | None = None
    agent_id: AgentId | None = None


Hit = tuple[ReasonCode, str]

_STOPPED: dict[AutopilotStatus, Hit] = {
    AutopilotStatus.PAUSED: (ReasonCode.AUTOPILOT_PAUSED, "the autopilot is paused"),
    AutopilotStatus.ARCHIVED: (ReasonCode.AUTOPILOT_ARCHIVED, "the autopilot is archived"),
}


def admit(snapshot: Snapshot, actor: Actor, now: datetime, overlap: Overlap = Overlap()) -> Decision:  # noqa: B008 - frozen
    """Judge one firing in the order of S4.1; the first hit wins. `now` is the database's clock."""
    stopped = _stopped(snapshot)
    if stopped is not None:
        return Decision(outcome="stop", code=stopped[0], text=stopped[1])
    decision = judge(snapshot, actor, now)
    if decision.outcome != "admit" or actor.source is not Source.SCHEDULE or not overlap.live:
        return decision
    match snapshot.overlap_policy:
        case OverlapPolicy.ALLOW:
            return decision
        case OverlapPolicy.QUEUE_ONE if not overlap.parked:
            return msgspec.structs.replace(decision, outcome="park")
        case _:
            text = "an earlier run is still in flight" + (" and one already waits" if overlap.parked else "")
            return msgspec.structs.replace(
                decision, outcome="skip", code=ReasonCode.ALREADY_ACTIVE, text=text
            )


def judge(snapshot: Snapshot, actor: Actor, now: datetime) -> Decision:
    """The part of admission that dispatch repeats (S4.6): target, readiness, permission, attribution."""
    attribution = _attribution(snapshot, actor)
    hit = next(_hits(snapshot, actor, now, attribution), None)
    agent_id = snapshot.executor.agent_id
    if hit is not None:
        return Decision(outcome="skip", code=hit[0], text=hit[1], attribution=attribution, agent_id=agent_id)
    return Decision(outcome="admit", attribution=attribution, agent_id=agent_id)


def may_invoke(executor: Executor, user_id: UserId, *, has_share: bool) -> bool:
    """S4.4: the owner always; others only if the agent is shared with the workspace or with them."""
    return executor.agent_owner_id == user_id or executor.agent_visibility == "workspace" or has_share


def _stopped(snapshot: Snapshot) -> Hit | None:
    if snapshot.autopilot_status is not AutopilotStatus.ACTIVE:
        return _STOPPED[snapshot.autopilot_status]
    if snapshot.trigger is not None and not snapshot.trigger.enabled:
        return ReasonCode.TRIGGER_DISABLED, "the trigger is disabled"
    return None


def _hits(snapshot: Snapshot, actor: Actor, now: datetime, attribution: Attribution | None) -> Iterator[Hit]:
    executor = snapshot.executor
    if snapshot.assignee_type is None:
        yield ReasonCode.TARGET_UNAVAILABLE, "the autopilot has no assignee"
    if snapshot.assignee_type is AssigneeType.SQUAD and (
        executor.squad_archived or executor.agent_id is None
    ):
        yield ReasonCode.TARGET_UNAVAILABLE, "the squad is archived or has no leader"
    if executor.agent_id is None or executor.agent_archived:
        yield ReasonCode.TARGET_UNAVAILABLE, "the agent is not available"
    if executor.runtime_id is None:
        yield ReasonCode.AGENT_RUNTIME_REQUIRED, "the agent has no runtime bound at dispatch time"
    if not executor.runtime_usable:
        yield ReasonCode.RUNTIME_UNUSABLE, _unusable(executor)
    if snapshot.execution_mode is ExecutionMode.RUN_ONLY and not online(executor, now):
        yield ReasonCode.RUNTIME_OFFLINE, "the agent's runtime is offline at dispatch time"
    judged, has_share = _judged(snapshot, actor)
    if not may_invoke(executor, judged, has_share=has_share):
        yield (
            ReasonCode.INVOCATION_NOT_ALLOWED,
            "the agent may not be invoked by the person this run is judged for",
        )
    if attribution is None:
        yield ReasonCode.ATTRIBUTION_BLOCKED, "nobody who still belongs to the workspace answers for this run"


def online(executor: Executor, now: datetime) -> bool:
    """Whether the runtime's last heartbeat is at most 45 s old (S4.3)."""
    return executor.runtime_seen_at is not None and now - executor.runtime_seen_at <= ONLINE_WITHIN


def _unusable(executor: Executor) -> str:
    told = ": ".join(part for part in (executor.runtime_detail, executor.runtime_repair_hint) if part)
    end = "the runtime could not run the agent at dispatch time"
    return f"{told[: 2000 - len(end) - 2]}; {end}" if told else end


def _judged(snapshot: Snapshot, actor: Actor) -> tuple[UserId, bool]:
    if actor.clicker is not None:
        return actor.clicker, actor.clicker_has_share
    return snapshot.creator_id, snapshot.executor.creator_has_share


def _attribution(snapshot: Snapshot, actor: Actor) -> Attribution | None:
    executor = snapshot.executor
    owner = executor.agent_owner_id
    return attribute(
        clicker=actor.clicker,
        trigger_publisher=snapshot.trigger.publisher if snapshot.trigger is not None else None,
        rule_owner=snapshot.rule_owner,
        agent_owner=Candidate(user_id=owner, present=executor.agent_owner_present)
        if owner is not None
        else None,
        policy=snapshot.attribution_policy,
    )
