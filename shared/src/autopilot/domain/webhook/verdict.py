"""What becomes of an event that is no repeat and whose signature is settled: ping, trigger, rule, filter, admission (S9.2)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from autopilot.domain.admission import Decision, Snapshot
from autopilot.domain.states import ReasonCode
from autopilot.domain.webhook import filters
from autopilot.domain.webhook.envelope import is_ping
from autopilot.domain.webhook.providers import Provider

MAX_TEXT: Final = 2000


class Verdict(Struct, frozen=True, kw_only=True):
    """`accepted`: a pending run. `skipped`: a run that ends at once. `ignored`: none. These two say why. `queued`: nobody knows."""

    outcome: Literal["accepted", "queued", "skipped", "ignored"]
    code: ReasonCode | None = None
    text: str | None = None


_ACCEPTED: Final = Verdict(outcome="accepted")
_UNDECIDED: Final = Verdict(outcome="queued")
_PING: Final = Verdict(
    outcome="ignored",
    code=ReasonCode.PROVIDER_PING,
    text="the provider only asked whether somebody is there",
)
_DISABLED: Final = Verdict(
    outcome="ignored", code=ReasonCode.TRIGGER_DISABLED, text="the trigger is disabled"
)
_FILTERED: Final = Verdict(
    outcome="ignored", code=ReasonCode.EVENT_FILTERED, text="the trigger does not ask for this event"
)


def judge(
    snapshot: Snapshot | None,
    decision: Decision | None,
    *,
    wanted: object,
    provider: Provider,
    event: str,
    head: object,
) -> Verdict:
    """The first that applies. `decision` is admission's on `snapshot`, None where it could not be made (S9.10).

    `wanted` are the trigger's event filters. All of it can be judged again from what a delivery keeps: provider, event
    and body.
    """
    if is_ping(provider, event):
        return _PING
    if snapshot is None or decision is None:
        return _UNDECIDED
    if snapshot.trigger is not None and not snapshot.trigger.enabled:
        return _DISABLED
    if decision.outcome == "stop":
        return _reasoned("ignored", decision)
    if not filters.matches(wanted, provider, event, head):
        return _FILTERED
    return _ACCEPTED if decision.outcome == "admit" else _reasoned("skipped", decision)


def _reasoned(outcome: Literal["skipped", "ignored"], decision: Decision) -> Verdict:
    code = decision.code or ReasonCode.INTERNAL_ERROR
    return Verdict(outcome=outcome, code=code, text=(decision.text or "it was not admitted")[:MAX_TEXT])
