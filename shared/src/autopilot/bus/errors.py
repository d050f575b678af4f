"""What can go wrong on the bus."""

from __future__ import annotations

from autopilot.domain.errors import AutopilotError, InfrastructureError


class BusUnavailable(InfrastructureError):
    """NATS cannot take this now."""


class BusRefused(AutopilotError):
    """NATS will never take this message as it is."""
