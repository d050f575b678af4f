"""Who may do what (S6): one table of actions, judged from the kind of token, a role, and how the caller stands to the thing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a member is in a workspace."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"


class TokenKind(StrEnum):
    """Whom a token speaks for: a person, a program of one workspace (source `api`), a runtime."""

    PERSONAL = "personal"
    SERVICE = "service"
    RUNTIME = "runtime"


class Visibility(StrEnum):
    """Who may invoke an agent beside its owner: those it is shared with, or every member."""

    PRIVATE = "private"
    WORKSPACE = "workspace"


class Standing(StrEnum):
    """How a caller stands to a thing. `CREATOR` is whoever it belongs to: an agent's owner, a runtime's registrant."""

    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"
    CREATOR = "creator"
    COLLABORATOR = "collaborator"


class Action(StrEnum):
    """Everything that needs a right. Each route of the API names the one it needs; no route is without."""

    READ = "read"
    SELF = "self"
    AUTOPILOT_CREATE = "autopilot.create"
    AUTOPILOT_WRITE = "autopilot.write"
    AUTOPILOT_RUN = "autopilot.run"
    AUTOPILOT_MANAGE_ACCESS = "autopilot.manage_access"
    AUTOPILOT_HAND_OVER = "autopilot.hand_over"
    AGENT_CREATE = "agent.create"
    AGENT_EDIT = "agent.edit"
    AGENT_SHARE = "agent.share"
    RUNTIME_EDIT = "runtime.edit"
    RUNTIME_SERVE = "runtime.serve"
    SQUAD_CREATE = "squad.create"
    SQUAD_EDIT = "squad.edit"
    PROJECT_CREATE = "project.create"
    PROJECT_EDIT = "project.edit"
    ISSUE_WRITE = "issue.write"
    TASK_CANCEL = "task.cancel"
    MEMBER_MANAGE = "member.manage"
    MEMBER_MAKE_OWNER = "member.make_owner"
    WORKSPACE_EDIT = "workspace.edit"
    WORKSPACE_TOKEN_MANAGE = "workspace_token.manage"  # noqa: S105 - the name of an action


_ANY = frozenset({Standing.MEMBER})
_ADMINS = frozenset({Standing.OWNER, Standing.ADMIN})
_ADMINS_AND_CREATOR = _ADMINS | {Standing.CREATOR}

ALLOWED: Final[dict[Action, frozenset[Standing]]] = {
    Action.READ: _ANY,
    Action.SELF: _ANY,  # one's own tokens, inbox, list of workspaces: the route itself looks at nobody else's
    Action.AUTOPILOT_CREATE: _ANY,
    Action.AUTOPILOT_WRITE: _ADMINS_AND_CREATOR | {Standing.COLLABORATOR},
    Action.AUTOPILOT_RUN: _ADMINS_AND_CREATOR | {Standing.COLLABORATOR},
    Action.AUTOPILOT_MANAGE_ACCESS: _ADMINS_AND_CREATOR,
    Action.AUTOPILOT_HAND_OVER: _ADMINS_AND_CREATOR,
    Action.AGENT_CREATE: _ANY,
    Action.AGENT_EDIT: _ADMINS_AND_CREATOR,
    Action.AGENT_SHARE: frozenset({Standing.CREATOR}),
    Action.RUNTIME_EDIT: _ADMINS_AND_CREATOR,
    Action.RUNTIME_SERVE: frozenset(),  # of no person: a runtime's token alone
    Action.SQUAD_CREATE: _ANY,
    Action.SQUAD_EDIT: _ADMINS_AND_CREATOR,
    Action.PROJECT_CREATE: _ANY,
    Action.PROJECT_EDIT: _ADMINS_AND_CREATOR,
    Action.ISSUE_WRITE: _ANY,
    Action.TASK_CANCEL: _ANY,
    Action.MEMBER_MANAGE: _ADMINS,
    Action.MEMBER_MAKE_OWNER: frozenset({Standing.OWNER}),
    Action.WORKSPACE_EDIT: _ADMINS,
    Action.WORKSPACE_TOKEN_MANAGE: _ADMINS,
}

# Which kinds of token open what at all; whatever is not here is for persons (S13.6).
_TOKENS: Final[dict[Action, frozenset[TokenKind]]] = {
    Action.READ: frozenset({TokenKind.PERSONAL, TokenKind.SERVICE}),
    Action.AUTOPILOT_RUN: frozenset({TokenKind.PERSONAL, TokenKind.SERVICE}),
    Action.RUNTIME_SERVE: frozenset({TokenKind.RUNTIME}),
}
_PERSONS: Final = frozenset({TokenKind.PERSONAL})


def tokens_for(action: Action) -> frozenset[TokenKind]:
    """The kinds of token that may be used for this; a person's must also bring the right itself."""
    return _TOKENS.get(action, _PERSONS)


def may(action: Action, role: Role, *, is_creator: bool = False, is_collaborator: bool = False) -> bool:
    """Whether a member with this role may act on a thing that stands to them as told."""
    standings = {Standing.MEMBER, Standing(role.value)}
    if is_creator:
        standings.add(Standing.CREATOR)
    if is_collaborator:
        standings.add(Standing.COLLABORATOR)
    return not standings.isdisjoint(ALLOWED[action])
