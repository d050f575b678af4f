"""Retention as a job: small transactions that disturb nobody, take turns, and may be cut off anywhere (S7.13, HAZARDS 30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest
from tests.support.archive import KEEP, Archive, aging_archive
from tests.support.dispatching import execute, fetch

from autopilot.domain.states import ExecutionMode, IssueStatus
from autopilot.kit import points
from autopilot.kit.clock import FakeClock
from autopilot.kit.config import ConfigError, load
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.config import SchedulerConfig
from autopilot.scheduler.jobs import retention
from autopilot.scheduler.jobs.retention import delete_old, kept_by, retention_job
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import JobRun, JobSpec, Registry
from autopilot.storage import retention as pages
from autopilot.storage.errors import ConstraintViolated, Contention

BEFORE_COMMIT, AFTER_BATCH = "scheduler.retention.before_commit", "scheduler.retention.after_batch"
EMPTY = {
    "autopilot_run": 0,
    "agent_task": 0,
    "webhook_delivery": 0,
    "webhook_body": 0,
    "webhook_dedupe": 0,
    "run_event": 0,
    "run_stats_hourly": 0,
}


class Ticking(FakeClock):
    """A clock on which every look takes a second, and that notes how long it was asked to rest."""

    looks = 0
    rested_s = 0.0

    def monotonic(self) -> float:
        self.looks += 1
        return float(self.looks)

    async def sleep(self, seconds: float) -> None:
        self.rested_s += seconds


@pytest.fixture
async def past(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Archive]:
    """Some of everything, all of it old enough to go, in pages of two."""
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr(retention, "REST", 0.0)
    async with aging_archive(postgres_url) as made:
        hook = await made.hook()
        for n in range(5):
            await made.received(hook, key=f"k{n}")
            await made.undecided(hook, "ignored")
        run_id = await made.ended(ExecutionMode.CREATE_ISSUE)
        await made.move_issue(run_id, IssueStatus.CANCELLED)
        for days_ago in range(6):
            await made.executed("sweep", days_ago=days_ago)
        await made.counted(days=5)
        await made.number_events()
        await made.age(500)
        yield made


async def assert_all_gone(past: Archive) -> None:
    counts = await past.counts()
    assert {table: counts[table] for table in EMPTY} == EMPTY
    assert (counts["sys_cron_executions"], counts["issue"]) == (1, 1)
    await past.assert_coherent()


async def test_more_than_a_page_of_everything_goes_in_one_run(past: Archive) -> None:
    """S7.17; each kind takes its turn."""
    with points.armed(AFTER_BATCH) as batches:
        result = await past.sweep()
    bodies = result.pop("bodies")
    assert 0 < bodies <= 10, "the others went with their runs"
    assert result == {
        "deliveries": 5,
        "runs": 6,
        "executions": 5,
        "events": 12,
        "statistics": 5,
        "outputs": 0,
        "inbox": 0,
        "finished": True,
    }
    assert batches.hits >= bodies / 2 + 3 + 3 + 3 + 6 + 3
    await assert_all_gone(past)


@pytest.mark.parametrize("on_hit", [1, 2, 3, 4, 5, 6, 10])
async def test_a_crash_within_any_transaction_leaves_whole_history_and_the_next_run_goes_on(
    past: Archive, on_hit: int
) -> None:
    """S1.1: killed before the commit or after it, nothing is half there."""
    for point in (BEFORE_COMMIT, AFTER_BATCH):
        killed = points.armed(point, "raise", on_hit=on_hit, error=asyncio.CancelledError())
        with killed, pytest.raises(asyncio.CancelledError):
            await delete_old(past.database, KEEP)
        await past.assert_coherent()
    assert (await past.sweep())["finished"] is True
    await assert_all_gone(past)


async def test_two_at_once_share_the_work_and_wait_for_nobody(past: Archive) -> None:
    """S1.1: what one holds the other passes over, and nothing goes twice."""
    with points.armed(BEFORE_COMMIT, "block", on_hit=3) as held:
        first = asyncio.create_task(delete_old(past.database, KEEP))
        await held.wait_reached()
        second = await past.sweep()
        held.release()
        one = await first
    assert {kind: one[kind] + second[kind] for kind in ("deliveries", "runs", "executions")} == {
        "deliveries": 5,
        "runs": 6,
        "executions": 5,
    }
    await past.sweep()
    await assert_all_gone(past)


async def test_many_at_once_leave_no_hole_at_any_instant(past: Archive) -> None:
    """HAZARDS 30"""
    going = [asyncio.create_task(delete_old(past.database, KEEP)) for _ in range(4)]
    while not all(task.done() for task in going):
        await past.assert_coherent()
    results = [task.result() for task in going]
    assert sum(result["runs"] for result in results) == 6
    assert sum(result["events"] for result in results) == 12
    await past.sweep()
    await assert_all_gone(past)


async def test_what_somebody_holds_is_left_for_the_next_day(past: Archive) -> None:
    """HAZARDS 30: SKIP LOCKED, from the run down."""
    async with past.today.transaction() as conn:
        run = await conn.fetchval(
            "SELECT id FROM autopilot_run WHERE source = 'webhook' ORDER BY id LIMIT 1 FOR KEY SHARE"
        )
        delivery = await conn.fetchval(
            "SELECT id FROM webhook_delivery WHERE run_id IS NOT NULL ORDER BY id DESC LIMIT 1 FOR KEY SHARE"
        )
        result = await delete_old(past.database, KEEP)
    assert (result["runs"], result["finished"]) == (4, True)
    left = await fetch(past.database, "SELECT id, webhook_delivery_id FROM autopilot_run ORDER BY id")
    assert (left[0]["id"], left[1]["webhook_delivery_id"]) == (run, delivery)
    await past.assert_coherent()
    await past.sweep()
    await assert_all_gone(past)


async def test_when_the_time_is_over_the_rest_waits_for_the_next_run(past: Archive) -> None:
    """S7.13: bounded; the kinds have all had a turn."""
    none = await delete_old(past.database, KEEP, time=timedelta(0))
    assert none["finished"] is False
    assert none["runs"] == 0

    clock = Ticking()
    one_round = await delete_old(past.database, KEEP, time=timedelta(seconds=1.5), clock=clock)
    assert one_round == {
        "bodies": 2,
        "deliveries": 2,
        "runs": 2,
        "executions": 1,
        "events": 2,
        "statistics": 2,
        "outputs": 0,
        "inbox": 0,
        "finished": False,
    }
    await past.sweep()
    await assert_all_gone(past)


async def test_after_each_page_the_database_is_left_alone_also_where_all_was_kept(
    past: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.13: history does not disturb dispatch."""
    monkeypatch.setattr(retention, "REST", 5.0)
    clock = Ticking()
    await delete_old(past.database, KEEP, time=timedelta(seconds=1.5), clock=clock)
    assert clock.rested_s == 6 * 5.0, "each page took a second"
    clock = Ticking()
    await delete_old(
        past.database,
        msgspec.structs.replace(KEEP, **dict.fromkeys(KEEP.__struct_fields__, timedelta(days=900))),
        clock=clock,
    )
    assert clock.rested_s == 2 * 5.0, "events and statistics each have a page to judge, of which all stays"


async def test_a_kind_that_fails_harms_no_other_and_is_told(past: Archive) -> None:
    """S7.7"""
    await execute(
        past.database,
        "ALTER TABLE issue_comment ADD COLUMN of_run uuid REFERENCES autopilot_run (id)",
    )
    await execute(
        past.database,
        "INSERT INTO issue_comment (id, workspace_id, issue_id, author_type, author_id, body, of_run) "
        "SELECT gen_random_uuid(), workspace_id, id, 'system', id, 'x', id FROM autopilot_run ORDER BY id LIMIT 1",
    )
    with pytest.raises(ConstraintViolated):
        await delete_old(past.database, KEEP)
    counts = await past.counts()
    assert (counts["run_event"], counts["run_stats_hourly"], counts["autopilot_run"]) == (0, 0, 6)


async def test_a_kind_whose_pages_take_too_long_to_find_harms_no_other_and_is_told(
    past: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.7: the statement's timeout is no outage."""

    async def slow(*_given: object) -> list[UUID]:
        raise Contention("QueryCanceledError: canceling statement due to statement timeout")

    monkeypatch.setattr(pages, "find_old_bodies", slow)
    with pytest.raises(Contention):
        await delete_old(past.database, KEEP)
    assert (await past.counts()).items() >= EMPTY.items()


async def test_the_job_is_registered_as_it_is_and_records_what_it_did(past: Archive) -> None:
    """S7.13: a real JobSpec, daily, that begins away from midnight."""
    spec = Registry().register(retention_job(past.database, KEEP, []))
    async with RunningJob(spec, Claimant(past.database), past.database) as job:
        await job.tick()
        await job.idle()
    [done] = await fetch(
        past.database,
        "SELECT plan_time, state, result FROM sys_cron_executions WHERE job_name = $1",
        spec.name,
    )
    assert (done["state"], done["result"]["runs"], done["result"]["finished"]) == ("SUCCESS", 6, True)
    assert (spec.cadence, spec.schedule_delay) == (timedelta(days=1), timedelta(hours=3))


def settings(**days: int) -> dict[str, str]:
    return {
        "AUTOPILOT_DATABASE_URL": "postgresql://localhost/autopilot",
        **{f"AUTOPILOT_RETAIN_{kind.upper()}_DAYS": str(value) for kind, value in days.items()},
    }


def test_less_than_the_longest_lateness_is_refused_at_start() -> None:
    """HAZARDS 30: a plan that may still be run late must not lose what says that it was run."""
    with pytest.raises(ConfigError) as refused:
        load(SchedulerConfig, settings(runs=30, executions=30, statistics=30, events=0, bodies=0))
    assert len(refused.value.faults) == 5
    kept = kept_by(load(SchedulerConfig, settings(runs=31, executions=31, statistics=31)))
    assert kept == msgspec.structs.replace(
        KEEP, **dict.fromkeys(("runs", "executions", "statistics"), timedelta(days=31))
    )


async def test_less_than_a_jobs_window_is_refused_at_start(past: Archive) -> None:
    """HAZARDS 30: or its plans would be run again."""

    async def work(_run: JobRun) -> None:
        return None

    month = JobSpec(name="month", handler=work, cadence=timedelta(days=1), catch_up_window=timedelta(days=90))
    longer = msgspec.structs.replace(month, name="longer", catch_up_window=timedelta(days=90, seconds=1))
    retention_job(past.database, KEEP, [month])
    with pytest.raises(ConfigError, match="longer"):
        retention_job(past.database, KEEP, [month, longer])
