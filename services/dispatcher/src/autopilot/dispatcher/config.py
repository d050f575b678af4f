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
    dispatch_batch_size: Annotated[
        int, Meta(ge=1, le=1000, description="Runs in a batch at most; fewer while batches take long")
    ] = 500
    dispatch_batch_bytes: Annotated[
        int, Meta(ge=1, description="Payload bytes in a batch at most; a larger run comes alone")
    ] = 8 * 1024 * 1024
    dispatch_lease_s: Annotated[
        float, Meta(ge=1, le=600, description="How long a claimed run is left to the process that claimed it")
    ] = 30.0
    dispatch_pace_per_min: Annotated[
        int,
        Meta(
            ge=1,
            le=6000,
            description="Webhook runs of one trigger in a minute, where it has no pace of its own",
        ),
    ] = 60
    event_batch_size: Annotated[
        int, Meta(ge=1, le=10_000, description="Run events numbered, or read for the stream, at once")
    ] = 1000
    event_stream_max_age_s: Annotated[
        float, Meta(ge=60, description="How long the NATS stream keeps run events")
    ] = 604_800.0
    event_stream_max_bytes: Annotated[
        int, Meta(ge=65_536, description="Bytes of run events in the NATS stream; full, it takes no more")
    ] = 256 * 1024 * 1024
    event_stream_replicas: Annotated[
        int, Meta(ge=1, le=5, description="Servers of the NATS cluster that hold the stream; 3 survives one")
    ] = 1
