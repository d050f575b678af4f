"""What becomes of a pending run, decided purely: admission's judgement once more, the texts for the agent, failures (S3, S4.6)."""

from __future__ import annotations

import msgspec

from autopilot.domain.admission import Actor, Snapshot, TriggerFacts, judge
from autopilot.domain.ids import SquadId
from autopilot.domain.prompts import RunFacts, issue_body, run_only_prompt
from autopilot.domain.states import (
    AssigneeType,
    AutopilotStatus,
    ExecutionMode,
    OverlapPolicy,
    ReasonCode,
    Source,
)
from autopilot.domain.titles import render_title, title_date
from autopilot.domain.webhook.body import parse_body
from autopilot.domain.webhook.envelope import event_payload
from autopilot.domain.webhook.providers import GENERIC, PROVIDERS
from autopilot.storage.dispatch import Ruling
from autopilot.storage.pending import PendingRun, RuleFacts, RunTrigger
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd

RETRY_DELAYS_S = (2.0, 8.0, 32.0, 128.0)
MAX_ATTEMPTS = len(RETRY_DELAYS_S) + 1
MAX_LOST_CLAIMS = 10
TEXT_LIMIT = 2000


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent gets: an issue's title and body, or the prompt of a run without an issue (title None)."""

    title: str | None
    text: str


def rule_on(entry: Claimed, run: PendingRun, facts: RuleFacts, trigger: RunTrigger | None) -> Ruling:
    """Judge target, readiness, permission and attribution as they are now; rule and trigger state are not asked again.

    The answer is that of every run of the same rule version, source, trigger and originator, and as late as this one.
    """
    rule = facts.rule
    clicker = run.originator_id if run.source is Source.MANUAL else None
    decision = judge(
        _snapshot(entry, run, facts, trigger),
        Actor(source=run.source, clicker=clicker, clicker_has_share=clicker in facts.shared_with),
        facts.read_at,
    )
    code, text = decision.code, decision.text
    # With another policy there is no more than one run at a time, and it may have waited by design.
    if run.superseded and rule.overlap_policy is OverlapPolicy.ALLOW:
        code, text = (
            ReasonCode.SCHEDULE_MISSED,
            "the run was late at dispatch, and a later one takes its place",
        )
    return Ruling(
        workspace_id=facts.workspace_id,
        autopilot_id=entry.autopilot_id,
        trigger_id=entry.trigger_id,
        agent_id=decision.agent_id,
        squad_id=_squad_of(facts),
        attribution=decision.attribution,
        code=code,
        reason=text[:TEXT_LIMIT] if text is not None else None,
        assignee_type=rule.assignee_type,
        assignee_id=rule.assignee_id,
        project_id=facts.project_id,
        issue_prefix=facts.issue_prefix,
        followers=facts.subscribers,
    )


def write_texts(entry: Claimed, run: PendingRun, facts: RuleFacts, trigger: RunTrigger | None) -> Texts:
    """Title and body, or prompt, from the rule version that was active at admission."""
    rule, delivery = facts.rule, run.delivery
    received_at = delivery.received_at if delivery is not None else None
    zone = _timezone(facts, trigger)
    event, payload = _event(run)
    about = RunFacts(
        autopilot_id=str(entry.autopilot_id),
        run_id=str(run.id),
        rule_title=rule.title,
        runbook=rule.description,
        source=run.source,
        admitted_at=run.created_at,
        planned_at=run.planned_at,
        received_at=received_at,
        trigger_label=trigger.label if trigger is not None else None,
        trigger_kind=trigger.kind if trigger is not None else None,
        tz_name=zone,
        event=event,
        payload=payload,
    )
    if run.execution_mode is ExecutionMode.RUN_ONLY:
        return Texts(title=None, text=run_only_prompt(about))
    day = title_date(run.source, zone, run.planned_at, received_at, run.created_at)
    return Texts(
        title=render_title(rule.issue_title_template, rule.title, on=day),
        text=issue_body(about),
    )


def judge_failure(entry: Claimed, error: str) -> Retry | RunEnd:
    """Another attempt after 2, 8, 32 and 128 s; the fifth failure ends the run (S10.2)."""
    attempts = entry.attempts + 1
    if attempts < MAX_ATTEMPTS:
        return Retry(
            seq=entry.seq,
            attempts=attempts,
            delay_s=RETRY_DELAYS_S[attempts - 1],
            error=error[:TEXT_LIMIT],
        )
    return _exhausted(entry, attempts, error, f"dispatch failed {attempts} times: {error}")


def judge_claims(entry: Claimed) -> RunEnd | None:
    """End a run whose dispatch again and again ended without any outcome, as when it kills the process (HAZARDS 16)."""
    if entry.lost_claims < MAX_LOST_CLAIMS:
        return None
    text = f"{entry.lost_claims} claims of the run ended without an outcome"
    return _exhausted(entry, entry.attempts, text, text)


def _exhausted(entry: Claimed, attempts: int, error: str, text: str) -> RunEnd:
    return RunEnd(
        run_id=entry.run_id,
        status="failed",
        code=ReasonCode.DISPATCH_EXHAUSTED,
        text=text[:TEXT_LIMIT],
        attempts=attempts,
        error=error[:TEXT_LIMIT],
    )


def _squad_of(facts: RuleFacts) -> SquadId | None:
    """The squad the rule names, if it names one."""
    rule = facts.rule
    if rule.assignee_type is not AssigneeType.SQUAD or rule.assignee_id is None:
        return None
    return SquadId(rule.assignee_id)


def _snapshot(entry: Claimed, run: PendingRun, facts: RuleFacts, trigger: RunTrigger | None) -> Snapshot:
    rule = facts.rule
    return Snapshot(
        workspace_id=facts.workspace_id,
        autopilot_id=entry.autopilot_id,
        autopilot_rev=0,
        autopilot_status=AutopilotStatus.ACTIVE,
        execution_mode=run.execution_mode,
        overlap_policy=rule.overlap_policy,
        assignee_type=rule.assignee_type,
        squad_id=_squad_of(facts),
        executor=facts.executor,
        creator_id=facts.creator_id,
        rule_owner=facts.rule_owner,
        attribution_policy=facts.attribution_policy,
        rule_version=0,
        rule_version_id=run.rule_version_id,
        trigger=TriggerFacts(trigger_id=trigger.id, enabled=True, publisher=trigger.publisher)
        if trigger is not None
        else None,
    )


def _timezone(facts: RuleFacts, trigger: RunTrigger | None) -> str | None:
    """The zone the trigger had at admission: from the rule version, else from the trigger as it is."""
    if trigger is None:
        return None
    for known in facts.rule.triggers:
        if known.id == trigger.id:
            return known.timezone
    return trigger.timezone


def _event(run: PendingRun) -> tuple[str | None, object]:
    """The event's name and payload: a webhook's through its delivery, an api caller's from the run."""
    delivery = run.delivery
    if delivery is None:
        payload = parse_body(run.payload, None).value if run.payload is not None else None
        return run.event, payload
    if delivery.body is None:
        return delivery.event, None
    provider = PROVIDERS.get(delivery.provider, GENERIC)
    return delivery.event, event_payload(provider, parse_body(delivery.body, delivery.content_type).value)
