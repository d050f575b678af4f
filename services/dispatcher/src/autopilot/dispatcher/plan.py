"""What becomes of a pending run, decided purely: admission's judgement once more, and the texts for the agent (S3, S4.6)."""

from __future__ import annotations

import msgspec

from autopilot.domain.admission import Actor, Decision, Snapshot, TriggerFacts, judge
from autopilot.domain.ids import SquadId
from autopilot.domain.prompts import RunFacts, issue_body, run_only_prompt
from autopilot.domain.states import AssigneeType, AutopilotStatus, ExecutionMode, ReasonCode, Source
from autopilot.domain.titles import render_title, title_date
from autopilot.domain.webhook.body import parse_body
from autopilot.domain.webhook.envelope import event_payload
from autopilot.domain.webhook.providers import GENERIC, PROVIDERS
from autopilot.storage.dispatch import PendingRun, RuleFacts
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


def decide(run: PendingRun, facts: RuleFacts, *, clicker_has_share: bool) -> Decision:
    """Judge target, readiness, permission and attribution as they are now; rule and trigger state are not asked again."""
    return judge(
        _snapshot(run, facts),
        Actor(
            source=run.source,
            clicker=run.originator_id if run.source is Source.MANUAL else None,
            clicker_has_share=clicker_has_share,
        ),
        facts.read_at,
    )


def squad_of(facts: RuleFacts) -> SquadId | None:
    """The squad the rule names, if it names one."""
    rule = facts.rule
    if rule.assignee_type is not AssigneeType.SQUAD or rule.assignee_id is None:
        return None
    return SquadId(rule.assignee_id)


def write_texts(run: PendingRun, facts: RuleFacts) -> Texts:
    """Title and body, or prompt, from the rule version that was active at admission."""
    rule, delivery = facts.rule, run.delivery
    received_at = delivery.received_at if delivery is not None else None
    zone = _timezone(run, facts)
    event, payload = _event(run)
    about = RunFacts(
        autopilot_id=str(run.autopilot_id),
        run_id=str(run.id),
        rule_title=rule.title,
        runbook=rule.description,
        source=run.source,
        admitted_at=run.created_at,
        planned_at=run.planned_at,
        received_at=received_at,
        trigger_label=run.trigger.label if run.trigger is not None else None,
        trigger_kind=run.trigger.kind if run.trigger is not None else None,
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


def _snapshot(run: PendingRun, facts: RuleFacts) -> Snapshot:
    rule, trigger = facts.rule, run.trigger
    return Snapshot(
        workspace_id=run.workspace_id,
        autopilot_id=run.autopilot_id,
        autopilot_rev=0,
        autopilot_status=AutopilotStatus.ACTIVE,
        execution_mode=run.execution_mode,
        overlap_policy=rule.overlap_policy,
        assignee_type=rule.assignee_type,
        squad_id=squad_of(facts),
        executor=facts.executor,
        creator_id=facts.creator_id,
        rule_owner=facts.rule_owner,
        attribution_policy=facts.attribution_policy,
        rule_version=run.rule_version,
        rule_version_id=run.rule_version_id,
        trigger=TriggerFacts(trigger_id=trigger.id, enabled=True, publisher=trigger.publisher)
        if trigger is not None
        else None,
    )


def _timezone(run: PendingRun, facts: RuleFacts) -> str | None:
    """The zone the trigger had at admission: from the rule version, else from the trigger as it is."""
    if run.trigger is None:
        return None
    for trigger in facts.rule.triggers:
        if trigger.id == run.trigger.id:
            return trigger.timezone
    return run.trigger.timezone


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
