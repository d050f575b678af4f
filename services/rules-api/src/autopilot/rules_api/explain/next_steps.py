"""What to do about each reason why a run was skipped or failed, or a delivery was not taken."""

from __future__ import annotations

from typing import Final

from autopilot.domain.states import ReasonCode

NEXT_STEPS: Final[dict[ReasonCode, str]] = {
    ReasonCode.AUTOPILOT_PAUSED: "Resume the autopilot (`autopilot update ID --status active`) when its reason is gone.",
    ReasonCode.AUTOPILOT_ARCHIVED: "Restore the autopilot by setting its status to active, or make a new one.",
    ReasonCode.TRIGGER_DISABLED: "Enable the trigger (`autopilot trigger-update ID TRIGGER --enabled`).",
    ReasonCode.EVENT_FILTERED: "Add the event to the trigger's filters, or remove them to take every event.",
    ReasonCode.TARGET_UNAVAILABLE: "Give the autopilot an agent that is not archived, or its squad a leader.",
    ReasonCode.AGENT_RUNTIME_REQUIRED: "Bind the agent to a runtime.",
    ReasonCode.RUNTIME_OFFLINE: "Start the runtime (`autopilot runtime run`); a run that was skipped stays skipped.",
    ReasonCode.RUNTIME_UNUSABLE: "Repair the agent program on the runtime's machine; the runtime says what is wrong.",
    ReasonCode.INVOCATION_NOT_ALLOWED: "Have the agent's owner share it with the person the run is judged for:"
    " who clicked, or the autopilot's creator.",
    ReasonCode.ATTRIBUTION_BLOCKED: "Let a present member edit the trigger or the rule: they then answer for its runs.",
    ReasonCode.ALREADY_ACTIVE: "Wait for the run in flight, or set the overlap policy to allow or queue_one.",
    ReasonCode.SCHEDULE_MISSED: "Raise the trigger's lateness limit, or set catch-up to all, if late runs are of use.",
    ReasonCode.PROVIDER_PING: "Nothing: the provider only tried the URL.",
    ReasonCode.DISPATCH_EXHAUSTED: "Look at the last error, mend its cause, and trigger or replay the run.",
    ReasonCode.TASK_FAILED: "Look at the task's error and output; the agent itself failed.",
    ReasonCode.TASK_CANCELLED: "Nothing failed: somebody cancelled the task. Trigger the autopilot again if it is wanted.",
    ReasonCode.TASK_EXPIRED: "Have a runtime online for the agent: nobody took the task in time.",
    ReasonCode.ISSUE_CANCELLED: "Nothing failed: the issue was cancelled. Trigger the autopilot again if it is wanted.",
    ReasonCode.ISSUE_BLOCKED: "Read the issue: somebody marked it as blocked.",
    ReasonCode.ISSUE_DELETED: "Nothing failed: the issue was deleted. Trigger the autopilot again if it is wanted.",
    ReasonCode.INTERNAL_ERROR: "Look at the error, and at the logs of the service for this id; then replay or trigger it.",
    ReasonCode.MISSING_SIGNATURE: "Give the provider the trigger's signing secret, or remove the secret from the trigger.",
    ReasonCode.INVALID_SIGNATURE: "Set the same secret at the provider and on the trigger, and have the provider send again.",
    ReasonCode.QUOTA_EXCEEDED: "Wait until the quota allows more.",
}


def next_step(code: ReasonCode | None) -> str | None:
    return NEXT_STEPS.get(code) if code is not None else None
