"""Refusals as RFC 9457 problems, each with a stable code (S13)."""

from __future__ import annotations

from typing import Final

from autopilot.domain.errors import AutopilotError, Conflict, Forbidden, NotFound
from autopilot.kit.http import Problem
from autopilot.storage.errors import ConstraintViolated

CODES: Final[dict[str, tuple[int, str]]] = {
    "malformed": (400, "The request cannot be read: not JSON, a wrong type, an unknown or missing field."),
    "bad_cursor": (400, "The cursor is not one that this list gave."),
    "workspace_required": (400, "The token is good for several workspaces and X-Workspace names none."),
    "unauthorized": (401, "There is no token, or it is unknown, expired or revoked."),
    "forbidden": (403, "The caller lacks the right."),
    "wrong_token_kind": (403, "This kind of token may not do that."),
    "invocation_not_allowed": (403, "The caller may not have this agent work."),
    "not_found": (404, "It does not exist in this workspace."),
    "method_not_allowed": (405, "The path exists, the method does not."),
    "body_timeout": (408, "The body did not arrive in time."),
    "conflict": (409, "It does not fit the present state."),
    "archived": (409, "It is archived and cannot be edited."),
    "edit_conflict": (409, "Somebody else's edit came first; read it again."),
    "autopilot_paused": (409, "The autopilot is paused: it takes no manual or api run."),
    "autopilot_archived": (409, "The autopilot is archived: it takes no manual or api run."),
    "lease_lost": (409, "The task is no longer held by this lease."),
    "not_a_webhook": (409, "Only a webhook trigger has a URL and a signing secret."),
    "name_taken": (409, "Another one here has this name."),
    "slug_taken": (409, "Another workspace has this slug."),
    "already_member": (409, "The person is a member already."),
    "last_owner": (409, "A workspace keeps at least one owner."),
    "content_too_large": (413, "The body is larger than 1 MiB."),
    "unsupported_media_type": (415, "A body is JSON, without a content encoding."),
    "invalid_cron": (422, "The cron expression is refused (400 from the preview)."),
    "invalid_timezone": (422, "The timezone is refused (400 from the preview)."),
    "agent_runtime_required": (422, "An active autopilot needs an agent with a runtime."),
    "invalid_value": (422, "A value is refused; `field` names it."),
    "idempotency_key_reused": (422, "The Idempotency-Key was used with another body before."),
    "headers_too_large": (431, "The headers are larger than 16 KiB."),
    "internal_error": (500, "Something went wrong here."),
    "unavailable": (503, "Something this service stands on is away; try again."),
}

_CONSTRAINTS: Final[dict[str, tuple[int, str, str, str]]] = {
    "workspace_slug_unique": (409, "slug_taken", "slug", "another workspace has this slug"),
    "agent_name_unique": (409, "name_taken", "name", "another agent here has this name"),
    "squad_name_unique": (409, "name_taken", "name", "another squad here has this name"),
    "project_name_unique": (409, "name_taken", "name", "another project here has this name"),
    "runtime_name_unique": (409, "name_taken", "name", "another runtime here has this name"),
    "workspace_slug_form": (422, "invalid_value", "slug", "not of the expected form"),
    "workspace_issue_prefix_form": (422, "invalid_value", "issue_prefix", "not of the expected form"),
    "member_pk": (409, "already_member", "email", "this person is a member already"),
    "agent_share_member_fk": (422, "invalid_value", "user_id", "no member of this workspace"),
    "app_user_email_form": (422, "invalid_value", "email", "not an e-mail address"),
}


def malformed(message: str, field: str | None = None) -> Problem:
    """400: the request cannot be read."""
    if field is None:
        return Problem(400, "malformed", message)
    return Problem(400, "malformed", message, field=field)


def to_problem(error: AutopilotError) -> Problem | None:
    """The problem for an error of a use case or of the schema; None leaves it to `kit.http`."""
    match error:
        case NotFound():
            return Problem(404, "not_found", error.message)
        case Forbidden():
            return Problem(403, error.code, error.message)
        case Conflict():
            return Problem(409, error.code, error.message)
        case ConstraintViolated() if error.constraint in _CONSTRAINTS:
            status, code, field, message = _CONSTRAINTS[error.constraint]
            return Problem(status, code, message, field=field)
        case _:
            return None
