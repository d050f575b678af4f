"""The runtime protocol over the wire (S11.3, S11.7): what a machine that runs agents says and is told."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from autopilot.domain.ids import LeaseToken, RuntimeId, TaskId, WorkspaceId
from autopilot.domain.states import TaskStatus
from autopilot.rules_api.wire.common import Body, Name
from autopilot.storage.runtime_protocol import ClaimedTask

MAX_OUTCOME_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 64 * 1024
MAX_CAPABILITIES_BYTES = 8 * 1024

Remark = Annotated[str, msgspec.Meta(max_length=2000)]


class Register(Body, frozen=True, kw_only=True):
    """A machine by its name; the same name is the same runtime. `capabilities`, at most 8 KiB, are for people to read."""

    name: Name
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    capabilities: dict[str, Any] = msgspec.field(default_factory=dict)


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime, and the numbers it keeps to."""

    runtime_id: RuntimeId
    name: str
    workspace_id: WorkspaceId
    concurrency: int
    heartbeat_s: int
    lease_s: int
    renew_s: int
    poll_s: int


class Named(Body, frozen=True, kw_only=True):
    """A runtime of the token's workspace."""

    runtime_id: UUID


class Heartbeat(Named, frozen=True, kw_only=True):
    """The machine answers; `usable` false says that its agent program cannot run, and is given no task."""

    usable: bool = True
    detail: Remark | None = None
    repair_hint: Remark | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What was said has been noted."""

    runtime_id: UUID


class ClaimRequest(Named, frozen=True, kw_only=True):
    """`claim_id` is new for each claim and the same when one is repeated because its answer did not arrive."""

    claim_id: UUID
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 30.0


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that the runtime holds now by this claim."""

    tasks: list[ClaimedTask]


class Lease(Body, frozen=True, kw_only=True):
    """The proof of holding a task."""

    lease_token: UUID


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The task is running."""

    status: Literal["running"] = "running"


class TaskRenewal(Lease, frozen=True, kw_only=True):
    """One task that is still worked on, with the latest line of its progress."""

    id: UUID
    progress: Remark | None = None


class Renew(Named, frozen=True, kw_only=True):
    """Every task that the runtime holds."""

    tasks: Annotated[list[TaskRenewal], msgspec.Meta(max_length=1000)]


class RenewedTask(msgspec.Struct, frozen=True, kw_only=True):
    """`lost`: the lease is somebody else's or the task's time is over. `cancelled`: a person no longer wants it."""

    id: TaskId
    state: Literal["ok", "lost", "cancelled"]
    lease_until: datetime | None


class RenewedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """One answer a task, in the order they were named."""

    tasks: list[RenewedTask]


class Output(Lease, frozen=True, kw_only=True):
    """What the program prints, at most 64 KiB of UTF-8; `place` says how many characters it had printed before."""

    place: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    text: Annotated[str, msgspec.Meta(min_length=1)]


class Complete(Lease, frozen=True, kw_only=True):
    """The agent is done; `result` holds at most 64 KiB of UTF-8."""

    result: str = ""


class Fail(Lease, frozen=True, kw_only=True):
    """The agent failed, ran out of its time, or was stopped with its machine. Of `error` the first 4,000 characters are kept."""

    error: str = ""
    kind: Literal["agent", "timeout", "runtime_lost"] = "agent"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the task is now; `changed` is false where it had ended before, `retry` says that it is queued again."""

    status: TaskStatus
    changed: bool
    retry: bool


def lease_of(body: Lease) -> LeaseToken:
    return LeaseToken(body.lease_token)
