"""The one error of the local stack: a sentence that a person can act on."""

from __future__ import annotations

from autopilot.domain.errors import AutopilotError


class LocalError(AutopilotError):
    """The local stack cannot go on; the message says why and what to do, in one sentence."""
