"""Whether what a rule is assigned to could run now: squad, leader, runtime, permission, attribution (S4)."""

from __future__ import annotations

from autopilot.domain.admission import Actor, Snapshot, judge, online
from autopilot.domain.ids import TriggerId
from autopilot.domain.states import AssigneeType, ExecutionMode, ReasonCode, Source
from autopilot.rules_api.explain.checks import Check, ok, span, stop, wait
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.storage import explain, facts, squads


async def readiness(look: Look, trigger_id: TriggerId | None) -> list[Check]:
    """The admission of an automated run, as it would be decided now; the first hit is the last check."""
    key = (look.rule.id, trigger_id)
    snapshot = (await facts.load_snapshots(look.conn, [key])).get(key)
    if snapshot is None:
        return []
    checks = await _squad(look, snapshot)
    agent_id = snapshot.executor.agent_id
    agent = await look.agent(agent_id)
    visible = (
        agent_id is not None
        and await explain.find_agent_name(look.conn, look.rule.workspace_id, agent_id, look.viewer)
        is not None
    )
    known = _known(look, snapshot) if visible else {}
    decision = judge(snapshot, Actor(source=Source.API), look.now)
    if decision.outcome == "skip" and decision.code is not None:
        who = f" ({agent})" if visible else ""
        checks.append(
            stop(
                "target",
                decision.code.value,
                f"A run now would be skipped{who}: {decision.text}.",
                next_step(decision.code),
                **known,
            )
        )
    elif snapshot.execution_mode is ExecutionMode.CREATE_ISSUE and not online(snapshot.executor, look.now):
        checks.append(
            wait(
                "target",
                ReasonCode.RUNTIME_OFFLINE.value,
                f"The runtime of {agent} is offline: an issue is made all the same, and its task waits for the runtime.",
                "Start the runtime (`autopilot runtime run`).",
                **known,
            )
        )
    else:
        checks.append(ok("target", "ready", f"A run now would be admitted: {agent} is ready.", **known))
    return checks


def _known(look: Look, snapshot: Snapshot) -> dict[str, object]:
    """Facts of the executor, for those who may invoke it."""
    executor = snapshot.executor
    seen = executor.runtime_seen_at
    return {
        "agent_id": executor.agent_id,
        "runtime_id": executor.runtime_id,
        "runtime_seen_at": seen,
        "runtime_silent_for": span(look.now - seen) if seen is not None else None,
        "runtime_usable": executor.runtime_usable,
        "runtime_detail": executor.runtime_detail,
        "repair_hint": executor.runtime_repair_hint,
    }


async def _squad(look: Look, snapshot: Snapshot) -> list[Check]:
    """A squad's leader executes what is assigned to the squad."""
    if snapshot.assignee_type is not AssigneeType.SQUAD or snapshot.squad_id is None:
        return []
    squad = await squads.find_squad(look.conn, look.rule.workspace_id, snapshot.squad_id)
    name = f"the squad {squad.name}" if squad is not None else "its squad"
    if squad is None or squad.archived_at is not None or squad.leader_id is None:
        what = "is archived" if squad is not None and squad.archived_at is not None else "has no leader"
        return [
            stop(
                "target",
                ReasonCode.TARGET_UNAVAILABLE.value,
                f"The rule is assigned to {name}, which {what}: its leader is who would execute.",
                next_step(ReasonCode.TARGET_UNAVAILABLE),
                squad_id=snapshot.squad_id,
            )
        ]
    leader = await look.agent(squad.leader_id)
    return [
        ok(
            "target",
            "squad_leader",
            f"The rule is assigned to {name}, so its leader executes: {leader}.",
            squad_id=squad.id,
        )
    ]
