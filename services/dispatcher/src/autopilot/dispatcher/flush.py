"""The last thing that a dispatcher does: events of what it has done go out before it ends (S15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autopilot.dispatcher.relay import Relay, Sequencer
from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log

_logger = log.get_logger()

FLUSH_WITHIN_S = 3.0


@asynccontextmanager
async def flushing(sequencer: Sequencer, relay: Relay) -> AsyncIterator[None]:
    """On leaving, number and publish what the loops' last steps told; what cannot go now waits for another dispatcher."""
    yield
    try:
        async with asyncio.timeout(FLUSH_WITHIN_S):
            while await sequencer.step():
                pass
            while await relay.step():
                pass
    except (InfrastructureError, TimeoutError) as error:
        _logger.info("events_left", reason=str(error) or "no time")
