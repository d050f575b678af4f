"""Claims, leases, retries and poisonous runs: one run never harms another, and nothing is lost or done twice (S10.1, S10.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import msgspec
import pytest
from tests.support import rules
from tests.support.dispatching import (
    admit,
    admit_one,
    assert_coherent,
    drain,
    execute,
    fetch,
    firing,
    receive,
    row,
    worker,
)
from tests.support.rules import Setting

from autopilot.bus.connection import Bus
from autopilot.dispatcher import work
from autopilot.dispatcher.dispatch import settle_failures
from autopilot.dispatcher.plan import judge_failure
from autopilot.domain.ids import LeaseToken, RunId
from autopilot.domain.states import ExecutionMode
from autopilot.kit import points
from autopilot.kit.clock import FakeClock
from autopilot.kit.ids import random_token, uuid7
from autopilot.storage import pending, queue
from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable
from autopilot.storage.queue import Claimed


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def poison(database: Database, run_id: RunId) -> None:
    """Make the database refuse this run's issue, whatever else is in the transaction."""
    await execute(
        database,
        f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF NEW.origin_run_id = '{run_id}' THEN RAISE EXCEPTION 'secret words'; END IF; RETURN NEW; END $$""",
    )
    await execute(
        database, "CREATE TRIGGER refuse BEFORE INSERT ON issue FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


async def claim(
    database: Database, *, limit: int = 100, max_bytes: int = 1 << 20, cursor: int = 0
) -> list[Claimed]:
    async with database.connection() as conn:
        claimed = await pending.claim(
            conn,
            limit=limit,
            max_bytes=max_bytes,
            lease_s=30,
            start=cursor,
            pace_per_min=60,
            token=LeaseToken(random_token()),
        )
    return [entry for entry, _ in claimed.entries]


async def expire_leases(database: Database) -> None:
    await execute(
        database,
        "UPDATE dispatch_queue SET lease_until = clock_timestamp() - interval '1 s' WHERE lease_token IS NOT NULL",
    )


async def test_two_dispatchers_give_each_run_one_issue_with_dense_numbers(
    database: Database, setting: Setting
) -> None:
    """S1.1, S3.1"""
    other = await rules.make_setting(database, "other")
    ask = await rules.make_autopilot(database, setting)
    elsewhere = await rules.make_autopilot(database, other)
    await admit(database, [firing(rule.id) for _ in range(60) for rule in (ask, elsewhere)])
    first, second = worker(database, dispatch_batch_size=7), worker(database, dispatch_batch_size=11)
    await asyncio.gather(drain(first), drain(second))
    for workspace_id in (setting.workspace_id, other.workspace_id):
        numbers = await fetch(
            database, "SELECT number FROM issue WHERE workspace_id = $1 ORDER BY number", workspace_id
        )
        assert [n["number"] for n in numbers] == list(range(1, 61))
    assert not await fetch(database, "SELECT 1 FROM autopilot_run WHERE status <> 'issue_created'")
    await assert_coherent(database)


@pytest.mark.parametrize("why", ["bytes", "suspects"])
async def test_a_batch_that_could_not_take_all_says_so(
    database: Database, setting: Setting, why: str
) -> None:
    """S10.5: nobody tells of what was there before, and a poll is far away."""
    autopilot = await rules.make_autopilot(database, setting)
    await admit(database, [firing(autopilot.id, payload=b"x" * 1000) for _ in range(3)])
    if why == "suspects":
        await execute(database, "UPDATE dispatch_queue SET claims = 5")
    told: list[int] = []
    # By a clock that stands still: after a step that took long the next batch is smaller, and there is more for that.
    one = worker(database, clock=FakeClock(), dispatch_batch_bytes=1500 if why == "bytes" else 1 << 20)
    one.more = lambda: told.append(1)
    assert [await one.step() is True for _ in range(3)] == [True, True, False]
    assert len(told) == 2


async def test_a_poisonous_run_is_set_apart_and_leaves_no_gap(database: Database, setting: Setting) -> None:
    """S10.2, HAZARDS 21: the batch is halved until the run stands alone; numbers stay dense."""
    autopilot = await rules.make_autopilot(database, setting)
    fired = [firing(autopilot.id) for _ in range(9)]
    await admit(database, fired)
    await poison(database, fired[4].run_id)
    await drain(worker(database))
    [refused] = await fetch(
        database,
        "SELECT id, dispatch_attempts, last_dispatch_error FROM autopilot_run WHERE status = 'pending'",
    )
    assert (refused["id"], refused["dispatch_attempts"]) == (fired[4].run_id, 1)
    assert refused["last_dispatch_error"] == "unexpected RaiseError"
    numbers = await fetch(database, "SELECT number FROM issue ORDER BY number")
    assert [n["number"] for n in numbers] == list(range(1, 9))
    await assert_coherent(database)


async def test_two_dispatchers_number_densely_around_poison(database: Database, setting: Setting) -> None:
    """S3.1, HAZARDS 21: what is given up and begun anew, here and there at once, leaves no number out."""
    autopilot = await rules.make_autopilot(database, setting)
    fired = [firing(autopilot.id) for _ in range(40)]
    await admit(database, fired)
    await poison(database, fired[13].run_id)
    first, second = worker(database, dispatch_batch_size=8), worker(database, dispatch_batch_size=8)
    await asyncio.gather(drain(first), drain(second))
    numbers = await fetch(database, "SELECT number FROM issue ORDER BY number")
    assert [n["number"] for n in numbers] == list(range(1, 40))
    await assert_coherent(database)


async def test_what_is_beyond_the_fan_out_follows_under_the_same_lease(
    database: Database, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 21: a transaction tells a bounded number of people."""
    monkeypatch.setattr(work, "MAX_FAN_OUT", 3)
    autopilot = await rules.make_autopilot(database, setting)
    await execute(
        database,
        "INSERT INTO autopilot_subscriber (workspace_id, autopilot_id, user_id) VALUES ($1, $2, $3)",
        *(setting.workspace_id, autopilot.id, setting.owner_id),
    )
    await admit(database, [firing(autopilot.id) for _ in range(7)])
    with (
        points.armed("dispatcher.after_claim") as claims,
        points.armed("dispatcher.before_commit") as commits,
    ):
        assert await worker(database).step()
    assert (claims.hits, commits.hits) == (1, 3)
    told = await fetch(database, "SELECT title FROM inbox_item ORDER BY id")
    assert [each["title"].split()[0] for each in told] == [f"AUT-{n}" for n in range(1, 8)]
    await assert_coherent(database)


async def test_an_unreadable_body_costs_its_own_run_an_attempt_and_no_split(
    database: Database, setting: Setting
) -> None:
    autopilot = await rules.make_autopilot(database, setting)
    hook = await rules.make_webhook_trigger(database, setting, autopilot.id)
    broken, _ = await receive(database, hook.id, b"{")
    sound, _ = await receive(database, hook.id, b"{}")
    with points.armed("dispatcher.before_commit") as commits:
        await drain(worker(database))
    assert commits.hits == 1
    assert (await row(database, "autopilot_run", sound))["status"] == "issue_created"
    assert (await row(database, "autopilot_run", broken))["dispatch_attempts"] == 1
    await assert_coherent(database)


async def test_five_attempts_with_growing_pauses_then_the_run_fails(
    database: Database, setting: Setting
) -> None:
    """S10.2: 2, 8, 32, 128 s, then dispatch_exhausted with the last error; the delivery fails and frees its slot."""
    autopilot = await rules.make_autopilot(database, setting)
    hook = await rules.make_webhook_trigger(database, setting, autopilot.id)
    run_id, delivery_id = await receive(database, hook.id, b"{}", key="k1")
    await poison(database, run_id)
    one = worker(database)
    for pause in (timedelta(seconds=s) for s in (2, 8, 32, 128)):
        [before] = await fetch(database, "SELECT clock_timestamp() AS now")
        await drain(one)
        [waiting] = await fetch(
            database,
            "SELECT available_at, clock_timestamp() AS now FROM dispatch_deferred WHERE run_id = $1",
            run_id,
        )
        assert before["now"] + pause <= waiting["available_at"] <= waiting["now"] + pause
        await assert_coherent(database)
        await execute(database, "UPDATE dispatch_deferred SET available_at = clock_timestamp()")
        async with database.connection() as conn:
            assert await queue.move_due(conn, limit=10) == 1
    await drain(one)
    run = await row(database, "autopilot_run", run_id)
    assert (run["status"], run["reason_code"], run["dispatch_attempts"]) == (
        "failed",
        "dispatch_exhausted",
        5,
    )
    assert run["failure_reason"] == "dispatch failed 5 times: unexpected RaiseError"
    delivery = await row(database, "webhook_delivery", delivery_id)
    assert (delivery["status"], delivery["reason_code"]) == ("failed", "dispatch_exhausted")
    assert not await fetch(database, "SELECT 1 FROM webhook_dedupe")
    assert await fetch(
        database, "SELECT 1 FROM run_event_outbox WHERE run_id = $1 AND kind = 'run.done'", run_id
    )
    await assert_coherent(database)


async def test_an_expired_lease_is_taken_over_and_the_late_commit_changes_nothing(
    database: Database, setting: Setting
) -> None:
    """S10.1, LE1"""
    autopilot = await rules.make_autopilot(database, setting)
    run_id = await admit_one(database, autopilot.id)
    late, quick = worker(database), worker(database)
    with points.armed("dispatcher.after_claim", "block", on_hit=1) as claimed:
        stuck = asyncio.create_task(late.step())
        await claimed.wait_reached()
        await expire_leases(database)
        await drain(quick)
        started = await row(database, "autopilot_run", run_id)
        claimed.release()
        assert await stuck
    assert started["status"] == "issue_created"
    assert dict(await row(database, "autopilot_run", run_id)) == dict(started)
    assert len(await fetch(database, "SELECT 1 FROM issue")) == 1
    await assert_coherent(database)


@pytest.mark.parametrize("poisoned", [False, True])
async def test_a_lease_that_was_taken_over_dispatches_and_judges_nothing(
    database: Database, setting: Setting, poisoned: bool
) -> None:
    """S10.1: completing, retrying and deferring are all guarded by the token."""
    autopilot = await rules.make_autopilot(database, setting)
    run_id = await admit_one(database, autopilot.id)
    if poisoned:
        await poison(database, run_id)
    with points.armed("dispatcher.after_claim", "block", on_hit=1) as claimed:
        late = asyncio.create_task(worker(database).step())
        await claimed.wait_reached()
        await expire_leases(database)
        [owner] = await claim(database)
        claimed.release()
        await late
    run = await row(database, "autopilot_run", run_id)
    assert (run["status"], run["dispatch_attempts"]) == ("pending", 0)
    [held] = await fetch(database, "SELECT seq, claims, lease_token FROM dispatch_queue")
    assert (held["seq"], held["claims"]) == (owner.seq, 2)
    assert held["lease_token"] is not None


async def test_judging_a_failure_under_a_lost_lease_changes_nothing(
    database: Database, setting: Setting
) -> None:
    autopilot = await rules.make_autopilot(database, setting)
    run_id = await admit_one(database, autopilot.id)
    [mine] = await claim(database)
    async with database.transaction() as conn:
        for outcome in (
            judge_failure(mine, "no"),
            judge_failure(msgspec.structs.replace(mine, attempts=4), "no"),
        ):
            done = await settle_failures(conn, LeaseToken(random_token()), [(mine, outcome)])
            assert not +done.outcomes
    assert (await row(database, "autopilot_run", run_id))["status"] == "pending"
    assert len(await fetch(database, "SELECT 1 FROM dispatch_queue")) == 1


async def test_a_commit_on_its_way_is_not_robbed_of_its_expired_lease(
    database: Database, setting: Setting
) -> None:
    project_id = uuid7()  # its lock needs a transaction, which can be held open
    await execute(
        database,
        "INSERT INTO project (id, workspace_id, name, created_by) VALUES ($1, $2, 'site', $3)",
        *(project_id, setting.workspace_id, setting.owner_id),
    )
    autopilot = await rules.make_autopilot(database, setting)
    await execute(database, "UPDATE autopilot SET project_id = $2 WHERE id = $1", autopilot.id, project_id)
    await admit_one(database, autopilot.id)
    with points.armed("dispatcher.after_claim", "block", on_hit=1) as claimed:
        slow = asyncio.create_task(worker(database).step())
        await claimed.wait_reached()
        await expire_leases(database)
        with points.armed("dispatcher.before_commit", "block", on_hit=1) as committing:
            claimed.release()
            await committing.wait_reached()
            assert await claim(database) == []
            committing.release()
            await slow
    assert len(await fetch(database, "SELECT 1 FROM issue")) == 1


async def test_an_outage_keeps_the_batch_and_costs_no_attempt(database: Database, setting: Setting) -> None:
    """S10.2, HAZARDS 16 and 17: the same lease finishes when the database is back."""
    autopilot = await rules.make_autopilot(database, setting)
    run_id = await admit_one(database, autopilot.id)
    one = worker(database)
    with points.armed("dispatcher.before_commit", "raise", error=DatabaseUnavailable()):
        for _ in range(6):
            with pytest.raises(DatabaseUnavailable):
                await one.step()
    [held] = await fetch(database, "SELECT claims, attempts, lease_token FROM dispatch_queue")
    assert (held["claims"], held["attempts"]) == (1, 0)
    assert await claim(database) == []
    await drain(one)
    run = await row(database, "autopilot_run", run_id)
    assert (run["status"], run["dispatch_attempts"], run["last_dispatch_error"]) == ("issue_created", 1, None)


async def test_a_stop_gives_leases_back(database: Database, setting: Setting) -> None:
    """S15: what was claimed and not finished is free for the others at once, as if never claimed."""
    autopilot = await rules.make_autopilot(database, setting)
    await admit(database, [firing(autopilot.id) for _ in range(3)])
    async with worker(database) as one:
        with (
            points.armed("dispatcher.before_commit", "raise", error=DatabaseUnavailable()),
            pytest.raises(DatabaseUnavailable),
        ):
            await one.step()
    entries = await fetch(database, "SELECT claims, lease_token FROM dispatch_queue")
    assert [(entry["claims"], entry["lease_token"]) for entry in entries] == [(0, None)] * 3


async def test_a_locked_run_is_left_to_its_lease_and_the_others_go_on(
    postgres_url: str, database: Database, setting: Setting
) -> None:
    """HAZARDS 16: contention costs no attempt, and only the contended run waits."""
    autopilot = await rules.make_autopilot(database, setting)
    hook = await rules.make_webhook_trigger(database, setting, autopilot.id)
    received = [await receive(database, hook.id, b"{}") for _ in range(4)]
    blocker = await asyncpg.connect(postgres_url)
    try:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM webhook_delivery WHERE id = $1 FOR UPDATE", received[1][1])
            async with Database(postgres_url, name="test", settings={"lock_timeout": "200"}) as impatient:
                await drain(worker(impatient))
    finally:
        await blocker.close()
    [pending] = await fetch(
        database, "SELECT id, dispatch_attempts FROM autopilot_run WHERE status = 'pending'"
    )
    assert (pending["id"], pending["dispatch_attempts"]) == (received[1][0], 0)
    await expire_leases(database)
    await drain(worker(database))
    assert (await row(database, "autopilot_run", received[1][0]))["status"] == "issue_created"
    await assert_coherent(database)


async def test_an_entry_with_three_lost_claims_comes_alone(database: Database, setting: Setting) -> None:
    """HAZARDS 16"""
    autopilot = await rules.make_autopilot(database, setting)
    fired = [firing(autopilot.id) for _ in range(4)]
    await admit(database, fired)
    suspect = fired[1].run_id
    await execute(database, "UPDATE dispatch_queue SET claims = 4, attempts = 1 WHERE run_id = $1", suspect)
    assert [entry.run_id for entry in await claim(database)] == [
        one.run_id for one in fired if one.run_id != suspect
    ]
    [alone] = await claim(database)
    assert (alone.run_id, alone.lost_claims) == (suspect, 3)
    await execute(database, "UPDATE dispatch_queue SET lease_token = NULL, lease_until = NULL")
    await execute(database, "DELETE FROM dispatch_queue WHERE run_id = $1", fired[0].run_id)
    assert [entry.run_id for entry in await claim(database)] == [suspect]


async def test_a_run_that_never_comes_to_an_outcome_is_given_up(database: Database, setting: Setting) -> None:
    """HAZARDS 16: the tenth lost claim ends it without another try."""
    autopilot = await rules.make_autopilot(database, setting)
    run_id = await admit_one(database, autopilot.id)
    await execute(database, "UPDATE dispatch_queue SET claims = 10")
    with points.armed("dispatcher.before_commit") as tries:
        await drain(worker(database))
    assert tries.hits == 0
    run = await row(database, "autopilot_run", run_id)
    assert (run["status"], run["reason_code"]) == ("failed", "dispatch_exhausted")
    await assert_coherent(database)


async def test_a_claim_is_bounded_by_rows_and_bytes_oldest_first(
    database: Database, setting: Setting
) -> None:
    """S10.1, S10.5: one run at least, however large."""
    autopilot = await rules.make_autopilot(database, setting)
    fired = [firing(autopilot.id, payload=b'"%s"' % (b"x" * 998)) for _ in range(6)]
    await admit(database, fired)
    assert [e.run_id for e in await claim(database, max_bytes=10)] == [fired[0].run_id]
    assert [e.run_id for e in await claim(database, max_bytes=2500)] == [fired[1].run_id, fired[2].run_id]
    assert [e.run_id for e in await claim(database, limit=1)] == [fired[3].run_id]
    assert [e.run_id for e in await claim(database)] == [fired[4].run_id, fired[5].run_id]
    assert await claim(database) == []


async def test_a_claim_touches_no_index(database: Database, setting: Setting) -> None:
    """HAZARDS 7: leases are heap-only updates."""
    autopilot = await rules.make_autopilot(database, setting)
    await admit(database, [firing(autopilot.id) for _ in range(20)])
    async with database.transaction() as conn:
        await pending.claim(
            conn, limit=20, max_bytes=1 << 20, lease_s=30, pace_per_min=60, token=LeaseToken(random_token())
        )
        counts = await conn.fetchrow(
            """SELECT pg_stat_get_xact_tuples_updated('dispatch_queue'::regclass) AS updated,
                      pg_stat_get_xact_tuples_hot_updated('dispatch_queue'::regclass) AS hot"""
        )
    assert counts is not None
    assert (counts["updated"], counts["hot"]) == (20, 20)


async def test_what_comes_back_behind_the_cursor_is_found_again(database: Database, setting: Setting) -> None:
    """HAZARDS 7: a claim that comes back short resets the cursor."""
    autopilot = await rules.make_autopilot(database, setting)
    fired = [firing(autopilot.id) for _ in range(5)]
    await admit(database, fired)
    await execute(
        database,
        "UPDATE dispatch_queue SET lease_token = $2, lease_until = clock_timestamp() + interval '1 min' WHERE run_id = $1",
        *(fired[0].run_id, random_token()),
    )
    one = worker(database, dispatch_batch_size=2)
    assert await one.step()
    await expire_leases(database)
    await drain(one)
    assert (await row(database, "autopilot_run", fired[0].run_id))["status"] == "issue_created"


async def test_due_retries_move_and_parked_runs_never_do(database: Database, setting: Setting) -> None:
    autopilot = await rules.make_autopilot(database, setting)
    due, later, parked = [await admit_one(database, autopilot.id) for _ in range(3)]
    await execute(
        database,
        """WITH gone AS (DELETE FROM dispatch_queue RETURNING run_id, autopilot_id)
           INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, attempts, claims, available_at, enqueued_at)
           SELECT CASE WHEN run_id = $2 THEN 'parked' ELSE 'retry' END, run_id, autopilot_id, 2, 3,
                  clock_timestamp() + CASE WHEN run_id = $1 THEN interval '1 minute' ELSE interval '0' END, clock_timestamp()
             FROM gone""",
        *(later, parked),
    )
    async with database.connection() as conn:
        assert await queue.move_due(conn, limit=10) == 1
    [moved] = await fetch(database, "SELECT run_id, attempts, claims, lease_token FROM dispatch_queue")
    assert tuple(moved) == (due, 2, 3, None)


async def test_the_executors_runtime_is_woken_after_the_commit(database: Database, setting: Setting) -> None:
    class Heard(Bus):
        def __init__(self) -> None:
            super().__init__(None, name="test")
            self.subjects: list[str] = []

        def wake(self, subject: str) -> None:
            self.subjects.append(subject)

    bus = Heard()
    autopilot = await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    await admit(database, [firing(autopilot.id) for _ in range(3)])
    with points.armed("dispatcher.after_commit", "block", on_hit=1) as committed:
        step = asyncio.create_task(worker(database, bus=bus).step())
        await committed.wait_reached()
        assert bus.subjects == []
        committed.release()
        await step
    assert bus.subjects == [f"autopilot.wake.runtime.{setting.runtime_id}"]
