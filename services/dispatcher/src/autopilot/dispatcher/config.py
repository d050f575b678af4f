"""What the dispatcher is told by its environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from autopilot.kit.config import CommonConfig


class DispatcherConfig(CommonConfig, frozen=True, kw_only=True):
    """The settings of the dispatcher."""

    dispatch_concurrency: Annotated[
        int, Meta(ge=1, le=64, description="Batches of runs dispatched at the same time")
    ] = 2
    dispatch_batch_size: Annotated[int, Meta(ge=1, le=1000, description="Runs in a batch at most")] = 100
    dispatch_batch_bytes: Annotated[
        int, Meta(ge=1, description="Payload bytes in a batch at most; a larger run comes alone")
    ] = 8 * 1024 * 1024
    dispatch_lease_s: Annotated[
        float, Meta(ge=1, le=600, description="How long a claimed run is left to the process that claimed it")
    ] = 30.0
    event_batch_size: Annotated[
        int, Meta(ge=1, le=10_000, description="Run events numbered, or read for the stream, at once")
    ] = 1000
