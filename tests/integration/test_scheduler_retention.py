"""Old history goes, each kind after its time, and never what something still needs (S7.13, S7.17, HAZARDS 24, 30)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final

import pytest
from tests.support.archive import KEEP, Archive, aging_archive
from tests.support.dispatching import execute, fetch, row

from autopilot.domain.ids import RunId
from autopilot.domain.states import ExecutionMode, IssueStatus
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.jobs.retention import delete_old
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import CatchUpMode, JobRun, JobSpec
from autopilot.storage import events, runs

MOMENT: Final = timedelta(microseconds=1)
ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


@pytest.fixture
async def past(postgres_url: str) -> AsyncIterator[Archive]:
    async with aging_archive(postgres_url) as made:
        yield made


async def gone(past: Archive, before: dict[str, int]) -> dict[str, int]:
    """How many rows of each kind went since; those of which none went are left out."""
    now = await past.counts()
    return {table: count - now[table] for table, count in before.items() if now[table] != count}


async def test_each_kind_goes_right_after_its_time_and_not_before(past: Archive) -> None:
    """S7.17, with the defaults: exactly so old is not older."""
    await past.scheduled()
    await past.received(await past.hook(), key="k1")
    reviewed = await past.ended(ISSUE)
    await past.move_issue(reviewed, IssueStatus.DONE)
    await past.printed(reviewed)
    await past.told()
    for status in ("ignored", "rejected"):
        await past.undecided(await past.hook(), status)
    for days_ago in (2, 1):
        await past.executed("sweep", days_ago=days_ago)
    await past.number_events()
    await past.counted(days=3)
    whole = await past.counts()
    at_30 = {"webhook_body": 3, "task_output": 1}
    at_90 = {**at_30, "webhook_delivery": 2, "sys_cron_executions": 1, "run_event": whole["run_event"]}
    at_400 = {
        **at_90,
        "webhook_delivery": 3,
        "webhook_dedupe": 1,
        "autopilot_run": 3,
        "agent_task": 3,
        "run_stats_hourly": 1,
        "inbox_item": 1,
    }
    seen: dict[str, int] = {}
    for days, then in ((30, at_30), (90, at_90), (400, at_400)):
        await past.age(days)
        await past.sweep()
        assert await gone(past, whole) == seen, f"exactly {days} days old"
        await past.age(days, plus=MOMENT)
        await past.sweep()
        assert await gone(past, whole) == then, f"more than {days} days old"
        seen = then
    left = await past.counts()
    assert left["issue"] == left["issue_comment"] == 1, "issues stay for ever, with what was said"
    assert left["autopilot_rule_version"] == whole["autopilot_rule_version"]


async def test_what_a_live_task_has_printed_stays(past: Archive) -> None:
    """S7.17: an issue may wait for its runtime for ever; what its task printed in an earlier attempt is still of use."""
    run_id = await past.started(ISSUE)
    await past.printed(run_id)
    await past.age(500)
    await past.sweep()
    assert (await past.counts())["task_output"] == 1
    await past.move_issue(run_id, IssueStatus.CANCELLED)
    await past.sweep()
    assert (await past.counts())["task_output"] == 0


async def test_a_runs_payload_reads_expired_when_its_body_is_gone(past: Archive) -> None:
    """S7.17"""
    run_id, _ = await past.received(await past.hook())
    await past.age(31)
    assert (await past.sweep())["bodies"] == 1
    async with past.database.connection() as conn:
        payload = await runs.find_payload(conn, run_id)
    assert payload.expired
    assert payload.body is None


async def never_dispatched(past: Archive) -> RunId:
    run_id, _ = await past.received(await past.hook(), key="k", complete=False)
    return run_id


async def in_review(past: Archive) -> RunId:
    return await past.ended(ISSUE)


async def blocked(past: Archive) -> RunId:
    run_id = await past.started(ISSUE)
    await past.move_issue(run_id, IssueStatus.BLOCKED)
    return run_id


async def of_a_live_task(past: Archive) -> RunId:
    """Its issue is closed, but somebody has given an agent more to do about it."""
    run_id = await past.ended(ISSUE)
    await past.move_issue(run_id, IssueStatus.DONE)
    await execute(
        past.database,
        """INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, prompt, status, cancel_requested_at)
           SELECT gen_random_uuid(), t.workspace_id, t.agent_id, t.issue_id, 'Do.', 'queued', clock_timestamp()
             FROM agent_task t WHERE t.run_id = $1""",
        run_id,
    )
    return run_id


async def replayed(past: Archive) -> RunId:
    hook = await past.hook()
    run_id, delivery_id = await past.received(hook)
    await past.undecided(hook, "ignored", replayed_from=delivery_id)
    await execute(
        past.database,
        "UPDATE webhook_delivery SET received_at = $2 WHERE replayed_from = $1",
        *(delivery_id, past.start + timedelta(days=490)),
    )
    return run_id


async def repeated_lately(past: Archive) -> RunId:
    """The sender still repeats it; without its slot it would be done again."""
    run_id, delivery_id = await past.received(await past.hook(), key="k")
    await execute(
        past.database,
        "UPDATE webhook_delivery SET attempt_count = 2, last_attempt_at = $2 WHERE id = $1",
        *(delivery_id, past.start + timedelta(days=490)),
    )
    return run_id


async def ended_lately(past: Archive) -> RunId:
    run_id = await past.started(BARE)
    await past.age(490)
    await past.complete(run_id)
    return run_id


async def live(past: Archive) -> RunId:
    return await past.started(BARE)


async def with_a_live_issue(past: Archive) -> RunId:
    return await past.started(ISSUE)


@pytest.mark.parametrize(
    "make",
    [
        never_dispatched,
        live,
        with_a_live_issue,
        in_review,
        blocked,
        of_a_live_task,
        replayed,
        repeated_lately,
        ended_lately,
    ],
)
async def test_a_run_stays_with_all_that_is_its_own_while_something_needs_it(
    past: Archive, make: Callable[[Archive], Awaitable[RunId]]
) -> None:
    """S7.17: not what a live run, an open issue, a queued task or a replay needs."""
    other = await past.ended(BARE)
    run_id = await make(past)
    own = await fetch(
        past.database, "SELECT id, status FROM agent_task WHERE run_id = $1 ORDER BY id", run_id
    )
    run = await row(past.database, "autopilot_run", run_id)
    slots = (await past.counts())["webhook_dedupe"]
    await past.age(500)
    assert (await past.sweep())["runs"] == 1
    assert not await past.exists("autopilot_run", other)
    assert await row(past.database, "autopilot_run", run_id) == run
    assert (
        await fetch(past.database, "SELECT id, status FROM agent_task WHERE run_id = $1 ORDER BY id", run_id)
        == own
    )
    if run["webhook_delivery_id"] is not None:
        assert await past.exists("webhook_delivery", run["webhook_delivery_id"])
    assert (await past.counts())["webhook_dedupe"] == slots


async def test_an_issue_outlives_its_run_and_can_still_be_edited(past: Archive) -> None:
    """S7.17: issues never go."""
    run_id = await past.ended(ISSUE)
    await past.move_issue(run_id, IssueStatus.DONE)
    await past.age(500)
    assert (await past.sweep())["runs"] == 1
    await past.move_issue(run_id, IssueStatus.TODO)
    [issue] = await fetch(past.database, "SELECT status FROM issue WHERE origin_run_id = $1", run_id)
    assert issue["status"] == "todo"
    await past.assert_coherent()


async def test_a_body_stays_while_a_run_needs_it_its_own_or_that_of_a_replay(past: Archive) -> None:
    """S7.17"""
    hook = await past.hook()
    _, done = await past.received(hook)
    _, replayed = await past.received(hook)
    _, running = await past.received(hook, complete=False)
    await past.dispatch()
    _, pending = await past.received(hook, complete=False)
    undecided = await past.undecided(hook, "queued")
    replay = await past.undecided(hook, "queued", replayed_from=replayed)
    await past.age(399)
    assert (await past.sweep())["bodies"] == 1
    left = {
        found["delivery_id"] for found in await fetch(past.database, "SELECT delivery_id FROM webhook_body")
    }
    assert left == {replayed, running, pending, undecided, replay}
    assert await past.exists("webhook_delivery", done)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_host_whose_clock_is_an_hour_off_changes_nothing(past: Archive, hours: int) -> None:
    """S1.4: ids are made by hosts; they bound the look, the database's time decides."""
    delivery_id = await past.undecided(await past.hook(), "ignored", host_ahead=timedelta(hours=hours))
    await past.age(90)
    await past.sweep()
    assert await past.exists("webhook_delivery", delivery_id)
    await past.age(90, plus=MOMENT)
    await past.sweep()
    assert not await past.exists("webhook_delivery", delivery_id)


async def test_a_delivery_that_was_ignored_stays_as_long_as_its_replay(past: Archive) -> None:
    """S7.17, S9.11"""
    hook = await past.hook()
    original = await past.undecided(hook, "ignored")
    await past.age(60)
    replay = await past.undecided(hook, "ignored", replayed_from=original)
    await past.age(100)
    assert (await past.sweep())["deliveries"] == 0
    await past.age(151)
    assert (await past.sweep())["deliveries"] == 1, "the replay goes first"
    assert not await past.exists("webhook_delivery", replay)
    assert (await past.sweep())["deliveries"] == 1
    assert not await past.exists("webhook_delivery", original)


async def test_a_slot_goes_with_its_delivery_and_then_the_key_is_new(past: Archive) -> None:
    """S9.7: what comes again after all that time, is done again."""
    hook = await past.hook()
    first, _ = await past.received(hook, key="k")
    await past.age(401)
    assert (await past.sweep())["runs"] == 1
    again, _ = await past.received(hook, key="k")
    assert again != first
    await past.assert_coherent()


async def test_what_a_scope_has_planned_last_and_what_is_not_over_stays(past: Archive) -> None:
    """HAZARDS 24"""
    retry = {"state": "FAILED", "error_code": "handler_error", "next_retry_at": past.start}
    running = {"state": "RUNNING", "finished_at": None}
    failed = {"state": "FAILED", "error_code": "handler_error", "attempts": 3}
    await past.executed("a", days_ago=3, **running)
    await past.executed("a", days_ago=2, **retry)
    for days_ago in (1, 0):
        await past.executed("a", days_ago=days_ago, **failed)
    await past.executed("a", days_ago=5, scope_id="another")
    await past.executed("b", days_ago=5)
    await past.age(91)
    await past.executed("b")
    assert (await past.sweep())["executions"] == 2
    rows = await fetch(
        past.database,
        "SELECT job_name, scope_id, state, plan_time FROM sys_cron_executions ORDER BY job_name, scope_id, plan_time",
    )
    day = timedelta(days=1)
    assert [tuple(found) for found in rows] == [
        ("a", "all", "RUNNING", past.start - 3 * day),
        ("a", "all", "FAILED", past.start - 2 * day),
        ("a", "all", "FAILED", past.start),
        ("a", "another", "SUCCESS", past.start - 5 * day),
        ("b", "all", "SUCCESS", past.start + 91 * day),
    ]


async def test_a_job_that_counts_every_plan_goes_on_from_where_it_was(past: Archive) -> None:
    """HAZARDS 24: to begin a scope anew would be to forget what it owes."""
    ran: list[JobRun] = []

    async def work(run: JobRun) -> None:
        ran.append(run)

    spec = JobSpec(
        name="hourly",
        handler=work,
        cadence=timedelta(hours=1),
        catch_up=CatchUpMode.EVERY_PLAN,
        catch_up_window=timedelta(hours=6),
        max_plans_per_tick=10,
    )

    async def tick() -> int:
        ran.clear()
        async with RunningJob(spec, Claimant(past.database), past.database) as job:
            await job.tick()
            await job.idle()
        return len(ran)

    assert await tick() == 1
    await past.age(0, plus=timedelta(hours=2))
    assert await tick() == 2
    await past.age(100)
    assert (await past.sweep())["executions"] == 2
    assert await tick() == 6, "what the window reaches back to, not only the newest"


async def test_events_go_in_their_order_and_without_a_hole(past: Archive) -> None:
    """S12.3: a cursor below what is kept is told so, since `first_seq` says where it begins."""
    for _ in range(3):
        await past.ended()
    await past.number_events()
    young = past.start + timedelta(days=50)
    await execute(past.database, "UPDATE run_event SET occurred_at = $1 WHERE seq = 3", young)
    for days, first in ((91, 3), (141, 7), (399, 7)):
        await past.age(days)
        await past.sweep()
        async with past.database.connection() as conn:
            head = await events.read_head(conn, past.setting.workspace_id)
        assert (head.first_seq, head.last_seq) == (first, 6), f"after {days} days"


async def test_without_nats_events_go_too_and_a_relay_that_comes_later_finds_its_end(past: Archive) -> None:
    """S1.2, S12.1: the newest event waits to be relayed, nothing else does."""
    for _ in range(2):
        await past.ended()
    await past.number_events()
    await execute(past.database, "UPDATE event_head SET relayed_seq = 0")
    await past.age(91)
    await delete_old(past.database, KEEP)
    async with past.database.connection() as conn:
        left = await events.read_after(conn, past.setting.workspace_id, 0, 10)
    assert [event.seq for event in left] == [4]
    await past.assert_coherent()
