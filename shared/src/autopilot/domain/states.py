"""The closed sets of states and reasons, and which state may follow which (S2, S4.2, S11.6, S11.7)."""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """Who or what asked for a run (S2.4)."""

    MANUAL = "manual"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    API = "api"


class ExecutionMode(StrEnum):
    """What a run makes: an issue with a task, or a bare task (S3)."""

    CREATE_ISSUE = "create_issue"
    RUN_ONLY = "run_only"


class AutopilotStatus(StrEnum):
    """The rule itself (S2.7)."""

    ACTIVE = "active"
    PAUSED = "paused"
    ARCHIVED = "archived"


class PauseReason(StrEnum):
    """Why the system paused a rule; a person's pause has none (S2.7)."""

    AGENT_RUNTIME_REQUIRED = "agent_runtime_required"
    TARGET_UNAVAILABLE = "target_unavailable"
    OWNER_LEFT = "owner_left"
    TOO_MANY_FAILURES = "too_many_failures"


class OverlapPolicy(StrEnum):
    """What a due occurrence does while an earlier run is in flight (S3.6)."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"


class AssigneeType(StrEnum):
    """Who executes: an agent, or a squad through its leader."""

    AGENT = "agent"
    SQUAD = "squad"


class TriggerKind(StrEnum):
    """What fires a trigger; never changed after creation (S8.7)."""

    SCHEDULE = "schedule"
    WEBHOOK = "webhook"


class RunStatus(StrEnum):
    """The one state machine of a run (S2)."""

    PENDING = "pending"
    ISSUE_CREATED = "issue_created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


RUN_STARTED = frozenset({RunStatus.ISSUE_CREATED, RunStatus.RUNNING})
# The drawing of S2; the database refuses every other transition by itself (autopilot_run_transition).
RUN_NEXT: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: RUN_STARTED | {RunStatus.SKIPPED, RunStatus.FAILED},
    RunStatus.ISSUE_CREATED: frozenset({RunStatus.COMPLETED, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.COMPLETED, RunStatus.FAILED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.SKIPPED: frozenset(),
}


class DeliveryStatus(StrEnum):
    """A webhook delivery (S9.15)."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    FAILED = "failed"
    IGNORED = "ignored"
    REJECTED = "rejected"


class IssueStatus(StrEnum):
    """An issue (S11.6)."""

    BACKLOG = "backlog"
    TODO = "todo"
    IN_PROGRESS = "in_progress"
    IN_REVIEW = "in_review"
    DONE = "done"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"


ISSUE_CLOSED = frozenset({IssueStatus.DONE, IssueStatus.CANCELLED})


class TaskStatus(StrEnum):
    """A task of an agent (S11.7)."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TASK_ACTIVE = frozenset({TaskStatus.QUEUED, TaskStatus.CLAIMED, TaskStatus.RUNNING})


class FailureKind(StrEnum):
    """Why a task failed; only infrastructure failures (timeout, runtime_lost) are retried (S11.2)."""

    AGENT = "agent"
    TIMEOUT = "timeout"
    RUNTIME_LOST = "runtime_lost"
    EXPIRED = "expired"


class ReasonCode(StrEnum):
    """Why a run was skipped or failed, or a delivery ignored; a closed set (S4.2)."""

    AUTOPILOT_PAUSED = "autopilot_paused"
    AUTOPILOT_ARCHIVED = "autopilot_archived"
    TRIGGER_DISABLED = "trigger_disabled"
    EVENT_FILTERED = "event_filtered"
    TARGET_UNAVAILABLE = "target_unavailable"
    AGENT_RUNTIME_REQUIRED = "agent_runtime_required"
    RUNTIME_OFFLINE = "runtime_offline"
    RUNTIME_UNUSABLE = "runtime_unusable"
    INVOCATION_NOT_ALLOWED = "invocation_not_allowed"
    ATTRIBUTION_BLOCKED = "attribution_blocked"
    ALREADY_ACTIVE = "already_active"
    SCHEDULE_MISSED = "schedule_missed"
    QUOTA_EXCEEDED = "quota_exceeded"
    PROVIDER_PING = "provider_ping"
    DISPATCH_EXHAUSTED = "dispatch_exhausted"
    TASK_FAILED = "task_failed"
    TASK_CANCELLED = "task_cancelled"
    TASK_EXPIRED = "task_expired"
    ISSUE_CANCELLED = "issue_cancelled"
    ISSUE_BLOCKED = "issue_blocked"
    ISSUE_DELETED = "issue_deleted"
    INTERNAL_ERROR = "internal_error"
    MISSING_SIGNATURE = "missing_signature"
    INVALID_SIGNATURE = "invalid_signature"


class AttributionSource(StrEnum):
    """Where the accountable person of a run came from (S5.2)."""

    DIRECT_HUMAN = "direct_human"
    TRIGGER_OWNER = "trigger_owner"
    RULE_OWNER = "rule_owner"
    OWNER_FALLBACK = "owner_fallback"


class AttributionPolicy(StrEnum):
    """A workspace's answer when no publisher is left: the agent's owner, or a refusal (S5.2)."""

    OWNER_FALLBACK = "owner_fallback"
    BLOCK = "block"
