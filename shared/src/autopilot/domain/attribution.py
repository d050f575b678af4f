"""Who answers for a run, decided purely (S5.1, S5.2): nobody is invented, nobody who left counts."""

from __future__ import annotations

import msgspec

from autopilot.domain.ids import UserId
from autopilot.domain.states import AttributionPolicy, AttributionSource


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """`accountable` answers for the run; `originator` is set only when that person was there and asked for it."""

    accountable: UserId
    source: AttributionSource
    originator: UserId | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may answer, and whether they are still a member of the workspace."""

    user_id: UserId
    present: bool


def attribute(
    *,
    clicker: UserId | None,
    trigger_publisher: Candidate | None,
    rule_owner: Candidate,
    agent_owner: Candidate | None,
    policy: AttributionPolicy,
) -> Attribution | None:
    """The first who counts: the person who clicked, the trigger's publisher, the rule's, the agent's owner; None blocks.

    `clicker` is set for manual runs alone (S5.2) and is both originator and accountable.
    """
    if clicker is not None:
        return Attribution(accountable=clicker, source=AttributionSource.DIRECT_HUMAN, originator=clicker)
    chain = [(trigger_publisher, AttributionSource.TRIGGER_OWNER), (rule_owner, AttributionSource.RULE_OWNER)]
    if policy is AttributionPolicy.OWNER_FALLBACK:
        chain.append((agent_owner, AttributionSource.OWNER_FALLBACK))
    for candidate, source in chain:
        if candidate is not None and candidate.present:
            return Attribution(accountable=candidate.user_id, source=source)
    return None
