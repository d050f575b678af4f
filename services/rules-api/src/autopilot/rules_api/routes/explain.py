"""Why did it, or did it not, run? (S13.3)"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import AutopilotId
from autopilot.engine.rule_access import find_rule
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.walk import walk
from autopilot.rules_api.wire.explain import ExplainQuery, ExplanationView, show_explanation
from autopilot.storage import facts

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)


async def explain(call: Call, autopilot_id: UUID, query: ExplainQuery) -> ExplanationView:
    """Walk from the rule to the run and name the first thing that stopped it, with facts, ids, times and the next step."""
    _check(query)
    question = query.as_question()
    async with call.database.snapshot() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        now = await facts.database_now(conn)
        look = Look(conn, rule, viewer=call.caller.user_id, now=now)
        findings = await walk(look, question)
    return show_explanation(rule.id, question, now, findings)


def _check(query: ExplainQuery) -> None:
    """A run and a delivery say by themselves when and by what they came; times end before calendars do."""
    if query.run_id is not None and query.delivery_id is not None:
        raise InvalidValue("delivery_id", "delivery_id: give it or run_id, not both.")
    one = query.run_id or query.delivery_id
    if one is not None and (query.at is not None or query.trigger_id is not None):
        field = "at" if query.at is not None else "trigger_id"
        raise InvalidValue(field, f"{field}: goes with neither run_id nor delivery_id.")
    if query.at is not None and not _FIRST <= query.at < _LAST:
        raise InvalidValue("at", "at: it must be in the years 1970 to 9998.")


ROUTES = (get("/api/autopilots/{autopilot_id}/explain", explain),)
