"""Whether a rule may point at an assignee, checked when it is saved or activated (S13.5, S4.7)."""

from __future__ import annotations

import msgspec

from autopilot.domain.admission import Executor, may_invoke
from autopilot.domain.errors import Forbidden, InvalidValue
from autopilot.domain.ids import AgentId, SquadId, UserId, WorkspaceId
from autopilot.domain.states import AssigneeType, AutopilotStatus
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn
from autopilot.storage.errors import Contention
from autopilot.storage.rule_targets import hold_executor

FIELD = "assignee_id"


class HeldAssignee(msgspec.Struct, frozen=True, kw_only=True):
    """An assignee with everything about it held until the transaction ends."""

    assignee_type: AssigneeType
    assignee_id: AgentId | SquadId
    executor: Executor


def needs_check(before: Autopilot | None, after: Autopilot) -> bool:
    """Whether an edit saves another assignee, or activates."""
    return (
        before is None
        or (before.assignee_type, before.assignee_id) != (after.assignee_type, after.assignee_id)
        or (before.status is not after.status and after.status is AutopilotStatus.ACTIVE)
    )


async def hold_assignee(
    conn: Conn, workspace_id: WorkspaceId, autopilot: Autopilot, editor: UserId
) -> HeldAssignee | None:
    """Hold what the rule would point at (level 1 of the lock order: before the rule itself is locked)."""
    if autopilot.assignee_type is None or autopilot.assignee_id is None:
        return None
    executor = await hold_executor(conn, workspace_id, autopilot.assignee_type, autopilot.assignee_id, editor)
    return HeldAssignee(
        assignee_type=autopilot.assignee_type, assignee_id=autopilot.assignee_id, executor=executor
    )


def check_assignee(
    before: Autopilot | None, after: Autopilot, held: HeldAssignee | None, editor: UserId
) -> None:
    """Refuse what S13.5 refuses; Contention when the rule's assignee changed before the rule was locked."""
    if not needs_check(before, after):
        return
    if after.assignee_id is None:
        if after.status is AutopilotStatus.ACTIVE:
            raise InvalidValue(FIELD, "an active autopilot needs an assignee")
        return
    if held is None or (held.assignee_type, held.assignee_id) != (after.assignee_type, after.assignee_id):
        raise Contention("the autopilot's assignee changed meanwhile")
    executor = held.executor
    invocable = may_invoke(executor, editor, has_share=executor.creator_has_share)
    shown = before is not None and before.assignee_id == after.assignee_id
    if after.assignee_type is AssigneeType.AGENT:
        # One answer for an agent that is private and one that does not exist, so that the answer tells neither.
        if executor.agent_id is None or (not invocable and not shown):
            raise InvalidValue(FIELD, "names no agent that you may assign here")
    elif executor.squad_archived or executor.agent_id is None:
        raise InvalidValue(FIELD, "names no squad here that is live and has a leader")
    if not invocable:
        raise Forbidden("You may not have this agent work.", code="invocation_not_allowed")
    if executor.agent_archived:
        raise InvalidValue(FIELD, "the agent is archived")
    if after.status is AutopilotStatus.ACTIVE and executor.runtime_id is None:
        raise InvalidValue(
            FIELD, "the agent has no runtime, which an active autopilot needs", code="agent_runtime_required"
        )


def check_hand_over(before: Autopilot, after: Autopilot, held: HeldAssignee | None, editor: UserId) -> None:
    """Refuse to lend a rule the right of another: its runs are judged for its creator from now on (S4.4, S6.7).

    Whoever may not have the agent work can take the rule for themselves, but not give it to somebody who may.
    """
    if after.creator_id in (before.creator_id, editor) or after.assignee_id is None:
        return
    if held is None or (held.assignee_type, held.assignee_id) != (after.assignee_type, after.assignee_id):
        raise Contention("the autopilot's assignee changed meanwhile")
    executor = held.executor
    if executor.agent_id is not None and not may_invoke(
        executor, editor, has_share=executor.creator_has_share
    ):
        raise Forbidden("You may not have this agent work.", code="invocation_not_allowed")
