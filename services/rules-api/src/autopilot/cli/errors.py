"""What can go wrong between the command and the API, each as one sentence for the person who typed it."""

from __future__ import annotations

from autopilot.domain.errors import AutopilotError, InfrastructureError


class ApiUnreachable(InfrastructureError):
    """The API does not answer."""


class ApiProblem(AutopilotError):
    """The API refused; its problem document (RFC 9457) in one line."""

    def __init__(
        self, *, status: int, title: str, code: str | None, detail: str | None, field: str | None
    ) -> None:
        self.status = status
        self.code = code
        self.field = field
        self.detail = detail
        about = [f"field {field}"] if field else []
        if code:
            about.append(code)
        reason = f"{title}: {detail}" if detail else title
        super().__init__(f"{reason} ({', '.join(about)})" if about else reason)


class ApiUnavailable(ApiProblem):
    """The API answers that it cannot answer now (429, 5xx): the same request may succeed later."""

    infrastructure = True


class NotUnderstood(AutopilotError):
    """Something answered, but not as this version's API does."""


class NoSuchId(AutopilotError):
    """An id or a prefix names nothing, or several."""


def may_pass(error: AutopilotError) -> bool:
    """Whether a runtime asks again: the API is away, or something in front of it speaks in its place."""
    return error.infrastructure or isinstance(error, NotUnderstood)
