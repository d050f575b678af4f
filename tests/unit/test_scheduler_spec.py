"""What is refused when a job is registered, by the name of its field (S7.2)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from autopilot.domain.errors import InvalidValue
from autopilot.scheduler.spec import CatchUpMode, JobRun, JobSpec, Registry
from autopilot.storage.executions import Scope


async def _handle(_run: JobRun) -> None:
    return None


async def _plan(_scope: Scope, _since: datetime, until: datetime) -> list[datetime]:
    return [until]


GOOD = JobSpec(name="good", handler=_handle, cadence=timedelta(minutes=1))


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": " "}),
        ("cadence", {"cadence": None}),
        ("cadence", {"cadence": seconds(0)}),
        ("schedule_delay", {"schedule_delay": seconds(-1)}),
        ("catch_up_window", {"catch_up_window": seconds(0)}),
        ("max_plans_per_tick", {"catch_up": CatchUpMode.EVERY_PLAN}),
        ("max_plans_per_tick", {"catch_up": CatchUpMode.EVERY_PLAN, "max_plans_per_tick": 0}),
        ("run_timeout", {"run_timeout": seconds(0)}),
        ("run_timeout", {"run_timeout": seconds(300), "stale_timeout": seconds(300)}),
        ("heartbeat_interval", {"stale_timeout": seconds(300), "heartbeat_interval": seconds(100.001)}),
        ("heartbeat_interval", {"heartbeat_interval": seconds(0)}),
        ("max_attempts", {"max_attempts": 0}),
        ("retry_backoff", {"retry_backoff": ()}),
        ("retry_backoff", {"retry_backoff": (seconds(-1),)}),
    ],
)
def test_a_faulty_job_is_refused_by_the_name_of_its_field(field: str, changes: dict[str, Any]) -> None:
    """S7.2"""
    with pytest.raises(InvalidValue) as refused:
        Registry().register(msgspec.structs.replace(GOOD, **changes))
    assert refused.value.field == field
    assert "'" in refused.value.message, "the job is named too"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cadence": None, "plans_for_scope": _plan},
        {"stale_timeout": seconds(300), "heartbeat_interval": seconds(100)},
        {"run_timeout": seconds(299.9), "stale_timeout": seconds(300)},
        {"catch_up": CatchUpMode.EVERY_PLAN, "max_plans_per_tick": 1},
    ],
)
def test_a_job_at_the_limits_is_taken(changes: dict[str, Any]) -> None:
    """S7.2"""
    registry = Registry()
    spec = registry.register(msgspec.structs.replace(GOOD, **changes))
    assert list(registry) == [spec]


def test_a_name_is_taken_once() -> None:
    """S7.2"""
    registry = Registry()
    registry.register(GOOD)
    with pytest.raises(InvalidValue) as refused:
        registry.register(GOOD)
    assert refused.value.field == "name"


def test_the_last_wait_serves_all_further_attempts() -> None:
    """S7.8"""
    assert [GOOD.retry_after(n) // timedelta(minutes=1) for n in (1, 2, 3, 4)] == [1, 5, 15, 15]
