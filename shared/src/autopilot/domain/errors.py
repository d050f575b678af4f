"""The error tree: every error of ours is an AutopilotError whose docstring is its default message."""

from __future__ import annotations

from typing import ClassVar


class AutopilotError(Exception):
    """Something went wrong in Autopilot."""

    infrastructure: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().partition("\n")[0]
        super().__init__(self.message)


class InvalidValue(AutopilotError):
    """A value is refused. `field` names it, `code` is stable for programs (S13.2: 422, or 400 where a route says so)."""

    def __init__(self, field: str, message: str, *, code: str = "invalid_value") -> None:
        self.field = field
        self.code = code
        super().__init__(message)


class NotFound(AutopilotError):
    """It does not exist here."""


class Forbidden(AutopilotError):
    """The caller lacks the right. `code` is stable for programs (S6)."""

    def __init__(self, message: str | None = None, *, code: str = "forbidden") -> None:
        self.code = code
        super().__init__(message)


class Conflict(AutopilotError):
    """What is asked does not fit the present state. `code` is stable for programs."""

    def __init__(self, message: str | None = None, *, code: str = "conflict") -> None:
        self.code = code
        super().__init__(message)


class Gone(AutopilotError):
    """It was here and is not kept any more. `code` is stable for programs."""

    def __init__(self, message: str | None = None, *, code: str = "gone") -> None:
        self.code = code
        super().__init__(message)


class InfrastructureError(AutopilotError):
    """Something that Autopilot stands on is unavailable.

    The same work may succeed later, so it costs no attempt (S10.2) and is retried with backoff.
    """

    infrastructure: ClassVar[bool] = True
