"""What the scheduler is told by its environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from autopilot.kit.config import CommonConfig


class SchedulerConfig(CommonConfig, frozen=True, kw_only=True):
    """The settings of the scheduler."""

    schedule_batch_size: Annotated[
        int, Meta(ge=1, le=2000, description="Due schedules admitted in one transaction at most")
    ] = 500
