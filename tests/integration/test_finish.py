"""How work ends: by fact, once, whatever comes late or twice, and locked top-down (S2.1, S11.1, S11.2, S11.6)."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.support.api import Api
from tests.support.dispatching import admit_one, assert_coherent, execute, fetch
from tests.support.endings import (
    Fact,
    apply,
    cancel,
    complete,
    delete,
    expire,
    fail,
    hold,
    lose,
    moved,
    refuse,
)
from tests.support.work import Shop, Started, make_shop

from autopilot.domain.ids import LeaseToken
from autopilot.domain.states import ExecutionMode, IssueStatus, OverlapPolicy, TaskStatus
from autopilot.engine import finish
from autopilot.kit.ids import uuid7

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


@pytest.mark.parametrize("status", [IssueStatus.BACKLOG, IssueStatus.TODO, IssueStatus.IN_PROGRESS])
async def test_an_issue_that_only_moves_about_ends_nothing(shop: Shop, status: IssueStatus) -> None:
    started = await shop.start(ISSUE)
    await apply(shop, moved(status), started, LeaseToken(uuid7()))
    assert (await shop.run(started.run_id))["status"] == "issue_created"
    assert (await shop.task(started.task_id))["status"] == "queued"


@pytest.mark.parametrize("status", [IssueStatus.DONE, IssueStatus.CANCELLED])
async def test_closing_an_issue_cancels_its_live_task(shop: Shop, status: IssueStatus) -> None:
    """S11.6: its runtime is worth a wake-up."""
    started = await shop.start(ISSUE)
    lease = await hold(shop, started)
    answer = await apply(shop, moved(status), started, lease)
    assert answer == finish.Moved(cancelled_on=frozenset({shop.setting.runtime_id}))
    assert (await shop.task(started.task_id))["status"] == "cancelled"
    assert (await shop.issue(started.issue_id))["closed_at"] is not None


@pytest.mark.parametrize("status", [IssueStatus.IN_REVIEW, IssueStatus.BLOCKED])
async def test_an_open_issue_leaves_its_task_at_work(shop: Shop, status: IssueStatus) -> None:
    started = await shop.start(ISSUE)
    lease = await hold(shop, started)
    await apply(shop, moved(status), started, lease)
    assert (await shop.task(started.task_id))["status"] == "running"
    await apply(shop, complete, started, lease)
    assert (await shop.issue(started.issue_id))["status"] == status
    assert (await fetch(shop.database, "SELECT body FROM issue_comment"))[0]["body"] == "the result"


async def test_a_completed_task_leaves_its_issue_in_review_with_the_result_as_comment(shop: Shop) -> None:
    """S11.6: in one transaction."""
    started = await shop.start(ISSUE)
    await apply(shop, complete, started, await hold(shop, started))
    assert (await shop.issue(started.issue_id))["status"] == "in_review"
    (comment,) = await fetch(shop.database, "SELECT author_type, author_id, body FROM issue_comment")
    assert tuple(comment) == ("agent", shop.setting.agent_id, "the result")
    run = await shop.run(started.run_id)
    assert (run["status"], run["result"]) == ("completed", "the result")


async def test_a_task_without_a_result_says_nothing_on_its_issue(shop: Shop) -> None:
    started = await shop.start(ISSUE)
    lease = await hold(shop, started)
    async with shop.database.transaction() as conn:
        await finish.complete_task(conn, started.task_id, lease, "")
    assert await fetch(shop.database, "SELECT id FROM issue_comment") == []
    assert (await shop.issue(started.issue_id))["status"] == "in_review"


async def test_deleting_an_issue_takes_what_hangs_on_it_and_keeps_its_task_as_history(shop: Shop) -> None:
    started = await shop.start(ISSUE)
    await shop.owner("POST", f"/api/issues/{started.issue_id}/comments", {"body": "hm"})
    answer = await apply(shop, delete, started, await hold(shop, started))
    assert answer == finish.Moved(cancelled_on=frozenset({shop.setting.runtime_id}))
    assert await fetch(shop.database, "SELECT id FROM issue_comment") == []
    assert (await shop.task(started.task_id))["status"] == "cancelled"
    assert await apply(shop, delete, started, LeaseToken(uuid7())) is finish.NoSuchIssue
    await assert_coherent(shop.database)


async def test_a_claimed_task_that_never_started_goes_back_without_an_attempt(shop: Shop) -> None:
    """HAZARDS 14: a claim whose answer is lost; five times, then it counts."""
    started = await shop.start(ISSUE)
    for _ in range(finish.CLAIM_LIMIT - 1):
        await shop.held(started, running=False)
        await shop.end_lease(started.task_id)
        await apply(shop, lose, started, LeaseToken(uuid7()))
        row = await shop.task(started.task_id)
        assert (row["status"], row["attempt"], row["lease_token"]) == ("queued", 1, None)
    await shop.held(started, running=False)
    await shop.end_lease(started.task_id)
    await apply(shop, lose, started, LeaseToken(uuid7()))
    assert (await shop.task(started.task_id))["attempt"] == 2


async def test_a_live_lease_is_not_lost(shop: Shop) -> None:
    """HAZARDS 15: only the task's own lease decides, looked at once more under its lock."""
    started = await shop.start(BARE)
    await shop.held(started)
    assert await apply(shop, lose, started, LeaseToken(uuid7())) == finish.Ended(
        status=TaskStatus.RUNNING, changed=False
    )


async def test_an_unclaimed_bare_task_expires_and_a_claimed_one_does_not(shop: Shop) -> None:
    """S11.3."""
    started = await shop.start(BARE)
    await apply(shop, expire, started, LeaseToken(uuid7()))
    run = await shop.run(started.run_id)
    assert (run["status"], run["reason_code"]) == ("failed", "task_expired")
    held = await shop.start(BARE)
    await shop.held(held, running=False)
    for fact in (expire, refuse):
        await apply(shop, fact, held, LeaseToken(uuid7()))
        assert (await shop.task(held.task_id))["status"] == "claimed"
    await assert_coherent(shop.database)


@pytest.mark.parametrize("fact", [complete, fail, cancel, lose], ids=lambda fact: fact.__name__)
async def test_whatever_ends_the_live_run_lets_the_parked_one_go(shop: Shop, fact: Fact) -> None:
    """S3.6: in the same transaction."""
    rule = await shop.rule(BARE, overlap_policy=OverlapPolicy.QUEUE_ONE)
    live = await shop.start(rule=rule)
    lease = await hold(shop, live)
    parked = await admit_one(shop.database, rule)
    await execute(
        shop.database,
        """WITH moved AS (DELETE FROM dispatch_queue WHERE run_id = $1 RETURNING run_id, autopilot_id)
           INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, available_at, enqueued_at)
           SELECT 'parked', run_id, autopilot_id, now() + interval '1 hour', now() FROM moved""",
        parked,
    )
    answer = await apply(shop, fact, live, lease)
    ended = answer[0] if isinstance(answer, tuple) else answer
    assert isinstance(ended, finish.Ended)
    assert ended.released
    assert [row["run_id"] for row in await fetch(shop.database, "SELECT run_id FROM dispatch_queue")] == [
        parked
    ]
    await assert_coherent(shop.database)


async def test_tasks_and_issues_end_together_without_a_deadlock(api: Api) -> None:
    """HAZARDS 4: locking child first. Both go top-down, so that one waits for the other."""
    api.database.acquire_timeout_s = 30.0  # there are more of them than connections
    shop = await make_shop(api, concurrency=12)
    runs = [await shop.start(ISSUE) for _ in range(6)]
    leases = {task["id"]: task["lease_token"] for task in await shop.machine.claim(limit=12)}

    async def once(fact: Fact, started: Started) -> None:
        await apply(shop, fact, started, LeaseToken(UUID(leases[str(started.task_id)])))

    facts: list[Fact] = [complete, moved(IssueStatus.CANCELLED), fail, cancel]
    await asyncio.gather(*(once(fact, started) for started in runs for fact in facts))
    for started in runs:
        assert (await shop.run(started.run_id))["completed_at"] is not None
    await assert_coherent(shop.database)
