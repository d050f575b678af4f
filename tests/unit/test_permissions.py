"""The table of rights, walked in full (S6)."""

from __future__ import annotations

import pytest

from autopilot.domain.permissions import ALLOWED, Action, Role, TokenKind, may, tokens_for

EVERYONE = {"owner", "admin", "member"}
ADMINS = {"owner", "admin"}

# Who may: by role alone, and whether being its creator or a collaborator suffices for a plain member.
EXPECTED = {
    Action.READ: (EVERYONE, True, True),  # S6.1
    Action.SELF: (EVERYONE, True, True),  # S6.8
    Action.AUTOPILOT_CREATE: (EVERYONE, True, True),  # S6.1
    Action.AUTOPILOT_WRITE: (ADMINS, True, True),  # S6.2
    Action.AUTOPILOT_RUN: (ADMINS, True, True),  # S13.6
    Action.AUTOPILOT_MANAGE_ACCESS: (ADMINS, True, False),  # S6.3
    Action.AUTOPILOT_HAND_OVER: (ADMINS, True, False),  # S5.8
    Action.AGENT_CREATE: (EVERYONE, True, True),
    Action.AGENT_EDIT: (ADMINS, True, False),  # S6.8 from here on
    Action.AGENT_SHARE: (set(), True, False),
    Action.RUNTIME_EDIT: (ADMINS, True, False),
    Action.RUNTIME_SERVE: (set(), False, False),
    Action.SQUAD_CREATE: (EVERYONE, True, True),
    Action.SQUAD_EDIT: (ADMINS, True, False),
    Action.PROJECT_CREATE: (EVERYONE, True, True),
    Action.PROJECT_EDIT: (ADMINS, True, False),
    Action.ISSUE_WRITE: (EVERYONE, True, True),
    Action.TASK_CANCEL: (EVERYONE, True, True),
    Action.MEMBER_MANAGE: (ADMINS, False, False),
    Action.MEMBER_MAKE_OWNER: ({"owner"}, False, False),
    Action.WORKSPACE_EDIT: (ADMINS, False, False),
    Action.WORKSPACE_TOKEN_MANAGE: (ADMINS, False, False),
}


def test_every_action_stands_in_the_table() -> None:
    assert set(ALLOWED) == set(Action) == set(EXPECTED)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("role", Role)
def test_a_role_opens_what_the_table_says(action: Action, role: Role) -> None:
    """S6.1, S6.2, S6.3, S6.8."""
    assert may(action, role) == (role.value in EXPECTED[action][0])


@pytest.mark.parametrize("action", Action)
def test_a_plain_member_is_helped_by_creating_or_collaborating(action: Action) -> None:
    """S6.2, S6.3: a collaborator writes and does not manage access."""
    _roles, creator, collaborator = EXPECTED[action]
    assert may(action, Role.MEMBER, is_creator=True) == creator
    assert may(action, Role.MEMBER, is_collaborator=True) == collaborator


def test_an_admin_does_not_share_an_agent_of_another() -> None:
    """S4.4, S6.8: a role opens no private agent."""
    assert not may(Action.AGENT_SHARE, Role.OWNER)
    assert not may(Action.AGENT_SHARE, Role.ADMIN)


@pytest.mark.parametrize("action", Action)
def test_a_service_token_reads_and_runs_and_a_runtime_token_only_serves(action: Action) -> None:
    """S13.6: everything else is for persons."""
    kinds = tokens_for(action)
    assert (TokenKind.SERVICE in kinds) == (action in (Action.READ, Action.AUTOPILOT_RUN))
    assert (TokenKind.RUNTIME in kinds) == (action is Action.RUNTIME_SERVE)
    assert (TokenKind.PERSONAL in kinds) == (action is not Action.RUNTIME_SERVE)
