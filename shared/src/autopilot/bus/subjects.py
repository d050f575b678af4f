"""The names under which things are said on NATS."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

wake_dispatch = "autopilot.wake.dispatch"
wake_schedule = "autopilot.wake.schedule"
wake_any_runtime = "autopilot.wake.runtime.*"
abuse = "autopilot.abuse"
"""What replicas of ingress tell each other about callers, as hints."""

EVENT_STREAM = "AUTOPILOT_EVENTS"
EVENT_SUBJECTS = "autopilot.events.>"

EventKind = Literal["run.started", "run.done"]


def wake_runtime(runtime_id: UUID) -> str:
    """There may be a task for this runtime's agents."""
    return f"autopilot.wake.runtime.{runtime_id}"


def runtime_of(subject: str) -> UUID:
    """The runtime that a `wake_runtime` subject names."""
    return UUID(subject.rpartition(".")[2])


def event_subject(workspace_id: UUID, kind: EventKind) -> str:
    """Where a workspace's run events of one kind go (S12.3)."""
    return f"autopilot.events.{workspace_id}.{kind}"


def workspace_of(subject: str) -> UUID:
    """The workspace that an event's subject names."""
    return UUID(subject.split(".")[2])
