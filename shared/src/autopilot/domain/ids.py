"""The ids of every durable thing, as distinct types over UUID (made by `autopilot.kit.ids`)."""

from __future__ import annotations

from typing import NewType
from uuid import UUID

WorkspaceId = NewType("WorkspaceId", UUID)
UserId = NewType("UserId", UUID)
TokenId = NewType("TokenId", UUID)
RuntimeId = NewType("RuntimeId", UUID)
AgentId = NewType("AgentId", UUID)
SquadId = NewType("SquadId", UUID)
ProjectId = NewType("ProjectId", UUID)
AutopilotId = NewType("AutopilotId", UUID)
TriggerId = NewType("TriggerId", UUID)
RuleVersionId = NewType("RuleVersionId", UUID)
RunId = NewType("RunId", UUID)
DeliveryId = NewType("DeliveryId", UUID)
IssueId = NewType("IssueId", UUID)
TaskId = NewType("TaskId", UUID)
EventId = NewType("EventId", UUID)
LeaseToken = NewType("LeaseToken", UUID)
