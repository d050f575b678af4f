"""Who answers for a run, and by what publication (S5.2)."""

from __future__ import annotations

from typing import assert_never

from autopilot.domain.states import AttributionSource
from autopilot.rules_api.explain.checks import Check, Outcome
from autopilot.rules_api.explain.look import Look
from autopilot.storage import explain
from autopilot.storage.runs import Run

_NEXT = "Whoever {edits} next answers for the runs after that; those before keep who they have."


async def attribution(look: Look, run: Run) -> Check:
    """The accountable person, with the version in force and the publication that made it theirs."""
    version = await look.numbered(run.rule_version)
    told = await look.version(version) if version is not None else f"version {run.rule_version}"
    text, remedy = await _in_words(look, run, told)
    return Check(
        subject="attribution",
        outcome=Outcome.NOTE,
        code=run.attribution_source.value if run.attribution_source is not None else "nobody_answers",
        text=text,
        facts={
            "accountable_id": run.accountable_id,
            "originator_id": run.originator_id,
            "attribution_source": run.attribution_source,
            "rule_version": run.rule_version,
            "published_by": version.published_by if version is not None else None,
            "edited_by": version.edited_by if version is not None else None,
        },
        next_step=remedy,
    )


async def _in_words(look: Look, run: Run, told: str) -> tuple[str, str | None]:
    if run.accountable_id is None or run.attribution_source is None:
        return "Nobody who is a member answers for this run.", None
    who = await look.name(run.accountable_id)
    match run.attribution_source:
        case AttributionSource.DIRECT_HUMAN:
            return f"{who} answers for it, having started it; the rule stood at {told}.", None
        case AttributionSource.TRIGGER_OWNER:
            stamped = await _stamped(look, run)
            return (
                f"{who} answers for it as the last to publish its trigger{stamped}; the rule stood at {told}.",
                _NEXT.format(edits="edits the trigger, or the substance of the rule,"),
            )
        case AttributionSource.RULE_OWNER:
            left = " The trigger's publisher had left." if run.trigger_id is not None else ""
            return (
                f"{who} answers for it as the last person to publish the rule, which stood at {told}.{left}",
                _NEXT.format(edits="publishes the rule"),
            )
        case AttributionSource.OWNER_FALLBACK:
            text = (
                f"{who} answers for it as the owner of the agent: nobody who published the trigger or the rule was"
                f" a member any more. The rule stood at {told}."
            )
            return text, _NEXT.format(edits="edits the rule and is a member")
        case _:
            assert_never(run.attribution_source)


async def _stamped(look: Look, run: Run) -> str:
    """By which version the trigger has its publisher, unless it was published again since the run."""
    triggers = await explain.list_triggers(look.conn, look.rule.workspace_id, look.rule.id, run.trigger_id)
    if not triggers or triggers[0].published_in is None or triggers[0].published_in > run.rule_version:
        return ""
    version = await look.numbered(triggers[0].published_in)
    return f", in {await look.version(version)}" if version is not None else ""
