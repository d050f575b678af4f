"""The error tree: every error of ours is an AutopilotError whose docstring is its default message."""

from __future__ import annotations


class AutopilotError(Exception):
    """Something went wrong in Autopilot."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().partition("\n")[0]
        super().__init__(self.message)


class InvalidValue(AutopilotError):
    """A value is refused. `field` names it, `code` is stable for programs (S13.2: 422, or 400 where a route says so)."""

    def __init__(self, field: str, message: str, *, code: str = "invalid_value") -> None:
        self.field = field
        self.code = code
        super().__init__(message)
