"""What the system does to rules by itself, as versions that nobody answers for: pauses, and hand-overs (S5.5, S7.14, S11.5).

Each is part of its caller's transaction, which may hold what stands above rules in the lock order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from autopilot.domain.ids import AgentId, AutopilotId, RunId, SquadId, WorkspaceId
from autopilot.domain.notices import HANDED_OVER_TEXT, PAUSE_CAUSES, NoticeKind, notice_title, paused_text
from autopilot.domain.states import AssigneeType, AutopilotStatus, PauseReason
from autopilot.engine.notices import Notice, tell_people
from autopilot.engine.publish import hold_rules, save_rule
from autopilot.storage import autopilots
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What made the system pause a rule, in words, and the run that shows it."""

    cause: str
    run_id: RunId | None = None


async def system_pause(
    conn: Conn,
    workspace_id: WorkspaceId,
    ids: Sequence[AutopilotId],
    reason: PauseReason,
    evidence: Mapping[AutopilotId, Evidence] | None = None,
) -> list[AutopilotId]:
    """Pause those of the rules that are active, as the system; which they were. Pending runs and tasks go on (S2.7).

    Creators and admins are told: no pause by the system goes unseen.
    """
    paused: list[Autopilot] = []
    for held in await hold_rules(conn, workspace_id, ids):
        if held.autopilot.status is AutopilotStatus.ACTIVE:
            after = msgspec.structs.replace(
                held.autopilot, status=AutopilotStatus.PAUSED, pause_reason=reason
            )
            await save_rule(conn, held, msgspec.structs.replace(held, autopilot=after), None)
            paused.append(after)
    seen = evidence or {}
    by_default = Evidence(cause=PAUSE_CAUSES[reason])
    notices = [_pause_notice(autopilot, seen.get(autopilot.id, by_default)) for autopilot in paused]
    await tell_people(conn, workspace_id, notices)
    return [autopilot.id for autopilot in paused]


def _pause_notice(autopilot: Autopilot, evidence: Evidence) -> Notice:
    return Notice(
        autopilot_id=autopilot.id,
        creator_id=autopilot.creator_id,
        kind=NoticeKind.AUTOPILOT_PAUSED,
        title=notice_title(autopilot.title, paused_text(evidence.cause)),
        run_id=evidence.run_id,
    )


async def pause_dependents(
    conn: Conn,
    workspace_id: WorkspaceId,
    reason: PauseReason,
    *,
    agents: Sequence[AgentId] = (),
    squad_id: SquadId | None = None,
) -> list[AutopilotId]:
    """Pause the active rules that agents execute (themselves or as leaders) or that a squad does (S11.5).

    The caller has changed the agents or the squad in this same transaction, and so holds their rows.
    """
    ids = await autopilots.list_dependents(conn, workspace_id, agents=agents, squad_id=squad_id)
    return await system_pause(conn, workspace_id, ids, reason)


async def hand_to_leader(
    conn: Conn, workspace_id: WorkspaceId, squad_id: SquadId, leader_id: AgentId
) -> list[AutopilotId]:
    """Assign every rule of a squad that is being archived to its leader, as the system (S11.5).

    Creators and admins are told, but not of rules that are archived themselves.
    """
    ids = await autopilots.list_squad_rules(conn, workspace_id, squad_id)
    notices: list[Notice] = []
    for held in await hold_rules(conn, workspace_id, ids):
        after = msgspec.structs.replace(
            held.autopilot, assignee_type=AssigneeType.AGENT, agent_id=leader_id, squad_id=None
        )
        await save_rule(conn, held, msgspec.structs.replace(held, autopilot=after), None)
        if after.status is not AutopilotStatus.ARCHIVED:
            notices.append(_hand_over_notice(after))
    await tell_people(conn, workspace_id, notices)
    return ids


def _hand_over_notice(autopilot: Autopilot) -> Notice:
    return Notice(
        autopilot_id=autopilot.id,
        creator_id=autopilot.creator_id,
        kind=NoticeKind.AUTOPILOT_HANDED_OVER,
        title=notice_title(autopilot.title, HANDED_OVER_TEXT),
    )
