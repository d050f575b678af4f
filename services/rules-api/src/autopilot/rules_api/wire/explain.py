"""Explanations over the wire (S13.3)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from autopilot.domain.ids import AutopilotId
from autopilot.rules_api.explain.checks import Finding
from autopilot.rules_api.explain.walk import Question
from autopilot.rules_api.wire.common import Query

Instant = Annotated[
    datetime,
    msgspec.Meta(tz=True, description="Any instant of the minute meant", examples=["2026-01-31T09:00:00Z"]),
]


class ExplainQuery(Query, frozen=True, kw_only=True):
    """What to explain: a run, a delivery, or a minute, of one trigger or of all; nothing asks how the rule stands now."""

    at: Instant | None = None
    trigger_id: UUID | None = None
    delivery_id: UUID | None = None
    run_id: UUID | None = None

    def as_question(self) -> Question:
        return Question(
            at=self.at, trigger_id=self.trigger_id, delivery_id=self.delivery_id, run_id=self.run_id
        )


class ExplanationView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `verdict` is a stable code, `summary` says it in words, `next_step` what to do about it.

    They are those of the first finding; each finding carries its checks in the order in which they were made.
    """

    autopilot_id: AutopilotId
    asked: Question
    looked_at: datetime
    verdict: str
    summary: str
    next_step: str | None
    findings: list[Finding]


def show_explanation(
    autopilot_id: AutopilotId, asked: Question, looked_at: datetime, findings: list[Finding]
) -> ExplanationView:
    answer = findings[0]
    return ExplanationView(
        autopilot_id=autopilot_id,
        asked=asked,
        looked_at=looked_at,
        verdict=answer.verdict,
        summary=answer.summary,
        next_step=answer.next_step,
        findings=findings,
    )
