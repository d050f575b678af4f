"""Refusals as RFC 9457 problems: every stable code in one list (S13)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from autopilot.domain.errors import AutopilotError, Conflict, Forbidden, Gone, NotFound
from autopilot.kit.http import Problem
from autopilot.storage.errors import ConstraintViolated


class Code(StrEnum):
    """What went wrong, for programs: a code never changes its meaning. `status` is the one it usually comes with."""

    status: int
    meaning: str

    def __new__(cls, code: str, status: int, meaning: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        member.meaning = meaning
        return member

    MALFORMED = ("malformed", 400, "It cannot be read: not JSON, a wrong type, an unknown or missing field.")
    BAD_CURSOR = ("bad_cursor", 400, "The cursor is not one that this list gave.")
    WORKSPACE_REQUIRED = (
        "workspace_required",
        400,
        "The token is good for several workspaces and X-Workspace names none.",
    )
    BAD_REQUEST = ("bad_request", 400, "It is not an HTTP request that can be read.")
    UNAUTHORIZED = ("unauthorized", 401, "There is no token, or it is unknown, expired or revoked.")
    FORBIDDEN = ("forbidden", 403, "The caller lacks the right.")
    WRONG_TOKEN_KIND = ("wrong_token_kind", 403, "This kind of token may not do that.")
    INVOCATION_NOT_ALLOWED = ("invocation_not_allowed", 403, "The caller may not have this agent work.")
    NOT_FOUND = ("not_found", 404, "It does not exist in this workspace.")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "The path exists, the method does not.")
    BODY_TIMEOUT = ("body_timeout", 408, "The body did not arrive in time.")
    CONFLICT = ("conflict", 409, "It does not fit the present state.")
    ARCHIVED = ("archived", 409, "It is archived and cannot be edited.")
    EDIT_CONFLICT = ("edit_conflict", 409, "Somebody else's edit came first; read it again.")
    AUTOPILOT_PAUSED = ("autopilot_paused", 409, "The autopilot is paused: it takes no manual or api run.")
    AUTOPILOT_ARCHIVED = (
        "autopilot_archived",
        409,
        "The autopilot is archived: it takes no manual or api run.",
    )
    LEASE_LOST = ("lease_lost", 409, "The task is no longer held by this lease.")
    NOT_A_WEBHOOK = ("not_a_webhook", 409, "Only a webhook trigger has a URL and a signing secret.")
    NAME_TAKEN = ("name_taken", 409, "Another one here has this name.")
    OWNER_LEFT = ("owner_left", 409, "Its creator has left the workspace: hand it over first.")
    SLUG_TAKEN = ("slug_taken", 409, "Another workspace has this slug.")
    ALREADY_MEMBER = ("already_member", 409, "The person is a member already.")
    LAST_OWNER = ("last_owner", 409, "A workspace keeps at least one owner.")
    TRIGGER_DISABLED = (
        "trigger_disabled",
        409,
        "The trigger is disabled or deleted: nothing is replayed to it.",
    )
    DELIVERY_REJECTED = ("delivery_rejected", 409, "A delivery that was rejected is not replayed.")
    DELIVERY_QUEUED = ("delivery_queued", 409, "The delivery is still on its way.")
    DELIVERY_BODY_EXPIRED = ("delivery_body_expired", 410, "The body of the delivery is no longer kept.")
    CONTENT_TOO_LARGE = ("content_too_large", 413, "The body is larger than 1 MiB.")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported_media_type", 415, "A body is JSON, without a content encoding.")
    EXPECTATION_FAILED = (
        "expectation_failed",
        417,
        "The header Expect asks for something other than 100-continue.",
    )
    INVALID_VALUE = ("invalid_value", 422, "A value is refused; `field` names it.")
    INVALID_CRON = ("invalid_cron", 422, "The cron expression is refused (400 from the preview).")
    INVALID_TIMEZONE = ("invalid_timezone", 422, "The timezone is refused (400 from the preview).")
    AGENT_RUNTIME_REQUIRED = (
        "agent_runtime_required",
        422,
        "An active autopilot needs an agent with a runtime.",
    )
    IDEMPOTENCY_KEY_REUSED = (
        "idempotency_key_reused",
        422,
        "The Idempotency-Key was used with another body before.",
    )
    HEADERS_TOO_LARGE = ("headers_too_large", 431, "The headers are larger than 16 KiB.")
    INTERNAL_ERROR = ("internal_error", 500, "Something went wrong here.")
    UNAVAILABLE = ("unavailable", 503, "Something this service stands on is away; try again.")


_CONSTRAINTS: Final[dict[str, tuple[Code, str, str]]] = {
    "workspace_slug_unique": (Code.SLUG_TAKEN, "slug", "another workspace has this slug"),
    "agent_name_unique": (Code.NAME_TAKEN, "name", "another agent here has this name"),
    "squad_name_unique": (Code.NAME_TAKEN, "name", "another squad here has this name"),
    "project_name_unique": (Code.NAME_TAKEN, "name", "another project here has this name"),
    "runtime_name_unique": (Code.NAME_TAKEN, "name", "another runtime here has this name"),
    "runtime_capabilities_size": (Code.INVALID_VALUE, "capabilities", "too large"),
    "workspace_slug_form": (Code.INVALID_VALUE, "slug", "not of the expected form"),
    "workspace_issue_prefix_form": (Code.INVALID_VALUE, "issue_prefix", "not of the expected form"),
    "member_pk": (Code.ALREADY_MEMBER, "email", "this person is a member already"),
    "agent_share_member_fk": (Code.INVALID_VALUE, "user_id", "no member of this workspace"),
    "app_user_email_form": (Code.INVALID_VALUE, "email", "not an e-mail address"),
}


def malformed(message: str, field: str | None = None) -> Problem:
    """400: the request cannot be read."""
    if field is None:
        return Problem(400, Code.MALFORMED, message)
    return Problem(400, Code.MALFORMED, message, field=field)


def to_problem(error: AutopilotError) -> Problem | None:
    """The problem for an error of a use case or of the schema; None leaves it to `kit.http`."""
    match error:
        case NotFound():
            return Problem(404, Code.NOT_FOUND, error.message)
        case Forbidden():
            return Problem(403, error.code, error.message)
        case Conflict():
            return Problem(409, error.code, error.message)
        case Gone():
            return Problem(410, error.code, error.message)
        case ConstraintViolated() if error.constraint in _CONSTRAINTS:
            code, field, message = _CONSTRAINTS[error.constraint]
            return Problem(code.status, code, message, field=field)
        case _:
            return None
