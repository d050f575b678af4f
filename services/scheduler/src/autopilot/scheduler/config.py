"""What the scheduler is told by its environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from autopilot.domain.health import Limits
from autopilot.domain.schedule import MAX_LATENESS_S
from autopilot.kit.config import CommonConfig

# While a plan may still be caught up on, what says that it was run is kept.
_LATEST_PLAN_DAYS = MAX_LATENESS_S // 86400


class SchedulerConfig(CommonConfig, frozen=True, kw_only=True):
    """The settings of the scheduler."""

    schedule_batch_size: Annotated[
        int, Meta(ge=1, le=2000, description="Due schedules admitted in one transaction at most")
    ] = 500
    failure_pause_streak: Annotated[
        int, Meta(ge=0, le=1000, description="Runs in a row that fail before a rule is paused; 0: never")
    ] = 10
    failure_pause_percent: Annotated[
        int, Meta(ge=1, le=100, description="Percentage of a week's runs that fail before a rule is paused")
    ] = 90
    failure_pause_min_runs: Annotated[
        int, Meta(ge=0, le=100_000, description="Runs of a week below which no percentage counts; 0: never")
    ] = 50
    failure_notice_streak: Annotated[
        int, Meta(ge=0, le=1000, description="Runs in a row that fail before people are told; 0: never")
    ] = 3
    skip_notice_streak: Annotated[
        int,
        Meta(ge=0, le=1000, description="Runs in a row that are skipped before people are told; 0: never"),
    ] = 20
    retain_runs_days: Annotated[
        int,
        Meta(
            ge=_LATEST_PLAN_DAYS, le=36500, description="Days that ended runs are kept, with their deliveries"
        ),
    ] = 400
    retain_bodies_days: Annotated[
        int, Meta(ge=1, le=36500, description="Days that raw webhook bodies are kept")
    ] = 30
    retain_deliveries_days: Annotated[
        int, Meta(ge=1, le=36500, description="Days that deliveries without a run are kept")
    ] = 90
    retain_executions_days: Annotated[
        int, Meta(ge=_LATEST_PLAN_DAYS, le=36500, description="Days that executions of jobs are kept")
    ] = 90
    retain_events_days: Annotated[int, Meta(ge=1, le=36500, description="Days that run events are kept")] = 90
    retain_statistics_days: Annotated[
        int, Meta(ge=_LATEST_PLAN_DAYS, le=36500, description="Days that hourly statistics are kept")
    ] = 400
    retain_outputs_days: Annotated[
        int, Meta(ge=1, le=36500, description="Days that what tasks printed is kept")
    ] = 30
    retain_inbox_days: Annotated[
        int,
        Meta(
            ge=1,
            le=36500,
            description="Days that inbox items are kept; a streak that lasts longer is told again",
        ),
    ] = 400

    @property
    def health_limits(self) -> Limits:
        """When the failure monitor acts (S7.14)."""
        return Limits(
            pause_streak=self.failure_pause_streak,
            pause_percent=self.failure_pause_percent,
            pause_min_runs=self.failure_pause_min_runs,
            notice_failures=self.failure_notice_streak,
            notice_skips=self.skip_notice_streak,
        )
