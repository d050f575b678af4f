"""Who answers for a run: the first who counts, and nobody invented (S5.1, S5.2)."""

from __future__ import annotations

from itertools import product

import pytest

from autopilot.domain.attribution import Attribution, Candidate, attribute
from autopilot.domain.ids import UserId
from autopilot.domain.states import AttributionPolicy, AttributionSource
from autopilot.kit.ids import uuid7

CLICKER, PUBLISHER, RULE_OWNER, AGENT_OWNER = (UserId(uuid7()) for _ in range(4))


def who(user_id: UserId, *, present: bool = True) -> Candidate:
    return Candidate(user_id=user_id, present=present)


def test_who_clicked_is_originator_and_accountable() -> None:
    found = attribute(
        clicker=CLICKER,
        trigger_publisher=None,
        rule_owner=who(RULE_OWNER),
        agent_owner=who(AGENT_OWNER),
        policy=AttributionPolicy.BLOCK,
    )
    assert found == Attribution(
        accountable=CLICKER, originator=CLICKER, source=AttributionSource.DIRECT_HUMAN
    )


@pytest.mark.parametrize(
    ("publisher", "owner", "agent", "policy"),
    list(product([None, False, True], [False, True], [None, False, True], AttributionPolicy)),
)
def test_the_first_who_still_belongs_answers(
    publisher: bool | None, owner: bool, agent: bool | None, policy: AttributionPolicy
) -> None:
    """None: there is none; False: they left. Every automated combination, and no originator in any."""
    found = attribute(
        clicker=None,
        trigger_publisher=None if publisher is None else who(PUBLISHER, present=publisher),
        rule_owner=who(RULE_OWNER, present=owner),
        agent_owner=None if agent is None else who(AGENT_OWNER, present=agent),
        policy=policy,
    )
    if publisher:
        expected = Attribution(accountable=PUBLISHER, source=AttributionSource.TRIGGER_OWNER)
    elif owner:
        expected = Attribution(accountable=RULE_OWNER, source=AttributionSource.RULE_OWNER)
    elif agent and policy is AttributionPolicy.OWNER_FALLBACK:
        expected = Attribution(accountable=AGENT_OWNER, source=AttributionSource.OWNER_FALLBACK)
    else:
        assert found is None
        return
    assert found == expected
