"""The runtime protocol: claims by lease, repeated, renewed and reported over real HTTP (S11.3, S11.7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import Api
from tests.support.dispatching import assert_coherent, execute, fetch, until_somebody_waits
from tests.support.work import Machine, Shop, make_machine, make_shop

from autopilot.domain.ids import IssueId, LeaseToken, RuntimeId, WorkspaceId
from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import ExecutionMode, FailureKind
from autopilot.engine import finish
from autopilot.engine.claims import claim_tasks
from autopilot.kit.ids import random_token, uuid7
from autopilot.storage import runtime_protocol
from autopilot.storage.database import Conn

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def test_a_name_is_one_runtime_however_often_it_registers(api: Api, shop: Shop) -> None:
    again = await make_machine(api, shop.place, concurrency=3)
    assert again.id == shop.machine.id
    shown = (await shop.owner("GET", f"/api/runtimes/{again.id}")).body
    assert (shown["concurrency"], shown["state"]) == (3, "online")
    assert shown["registered_by"] == str(shop.place.owner_id)
    assert (await make_machine(api, shop.place, "other")).id != again.id


async def test_the_numbers_of_the_protocol_are_told(api: Api, shop: Shop) -> None:
    """S11.7, LE2: two renewals may fail before a lease ends."""
    answer = await shop.machine.client("POST", "/api/runtime/register", {"name": "box"})
    numbers = {name: value for name, value in answer.body.items() if name.endswith("_s")}
    assert numbers == {"heartbeat_s": 15, "lease_s": 30, "renew_s": 10, "poll_s": 30}
    assert numbers["renew_s"] * 3 <= numbers["lease_s"]


async def test_only_a_runtime_token_speaks_the_protocol(api: Api, shop: Shop) -> None:
    body = {"name": "box"}
    for client in (shop.owner, await api.program(shop.place, TokenKind.SERVICE)):
        assert (await client("POST", "/api/runtime/register", body)).problem()[:2] == (
            403,
            "wrong_token_kind",
        )
    assert (await shop.machine.client("GET", "/api/issues")).problem()[:2] == (403, "wrong_token_kind")


async def test_runtimes_and_tasks_of_other_workspaces_do_not_exist(api: Api, shop: Shop) -> None:
    """S6.6."""
    other = await make_shop(api, "other")
    started = await shop.start()
    task = await shop.held(started)
    thief = Machine(client=other.machine.client, id=shop.machine.id)
    assert await thief.beat() == 404
    for path, fields in (("claim", {"claim_id": uuid7()}), ("renew", {"tasks": []})):
        answer = await thief.client("POST", f"/api/runtime/{path}", {"runtime_id": thief.id, **fields})
        assert answer.status == 404
    await thief.client("POST", "/api/runtime/bye", {"runtime_id": thief.id})
    assert (await shop.owner("GET", f"/api/runtimes/{thief.id}")).body["state"] == "online"
    for act in ("start", "complete", "fail"):
        assert (await thief.call(task, act))[0] == 404
    assert (await other.machine.renew(task))[0]["state"] == "lost"
    assert (await shop.run(started.run_id))["status"] == "running"


async def waiting(shop: Shop) -> set[RuntimeId]:
    """What the poll for all waiting claims finds for the machine."""
    async with shop.database.connection() as conn:
        return await runtime_protocol.find_waiting(conn, [RuntimeId(UUID(shop.machine.id))])


async def test_a_heartbeat_says_what_is_wrong_with_the_machine(shop: Shop) -> None:
    """S4.3: and while its agent program cannot run it is given nothing."""
    started = await shop.start()
    assert await shop.machine.beat(usable=False, detail="no such command", repair_hint="install it") == 200
    shown = (await shop.owner("GET", f"/api/runtimes/{shop.machine.id}")).body
    assert (shown["state"], shown["detail"], shown["repair_hint"]) == (
        "unusable",
        "no such command",
        "install it",
    )
    assert await shop.machine.claim() == []
    assert await waiting(shop) == set()  # or its long poll would try to claim at every poll, in vain
    assert await shop.machine.beat() == 200
    assert await waiting(shop) == {UUID(shop.machine.id)}
    assert [task["id"] for task in await shop.machine.claim()] == [str(started.task_id)]


async def test_a_runtime_that_leaves_is_offline_at_once(shop: Shop) -> None:
    await shop.machine.client("POST", "/api/runtime/bye", {"runtime_id": shop.machine.id})
    shown = (await shop.owner("GET", f"/api/runtimes/{shop.machine.id}")).body
    assert (shown["state"], shown["seen_at"]) == ("offline", None)


async def test_a_claim_and_a_renewal_are_heartbeats(shop: Shop) -> None:
    for say in (shop.machine.claim, shop.machine.renew):
        await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=60)
        await say()
        assert (await shop.owner("GET", f"/api/runtimes/{shop.machine.id}")).body["state"] == "online"


async def test_a_claimed_task_carries_what_the_agent_needs(shop: Shop) -> None:
    started = await shop.start(ISSUE)
    task = await shop.held(started, running=False)
    assert (task["issue_id"], task["issue_key"]) == (str(started.issue_id), "AUT-1")
    assert (task["run_id"], task["autopilot_id"]) == (str(started.run_id), str(started.autopilot_id))
    assert (task["agent_id"], task["source"]) == (str(shop.setting.agent_id), "api")
    assert (task["attempt"], task["max_attempts"], task["timeout_s"]) == (1, 3, 3600)
    assert "Read it and say what you think." in task["prompt"]


async def test_a_held_task_shows_who_holds_it_and_until_when(shop: Shop) -> None:
    """S11.7, LE7; and nobody holds what is queued or over."""
    started = await shop.start()
    path = f"/api/tasks/{started.task_id}"
    waiting_for = (await shop.owner("GET", path)).body
    assert (waiting_for["runtime_id"], waiting_for["lease_until"]) == (None, None)
    task = await shop.held(started)
    held = (await shop.owner("GET", path)).body
    assert held["runtime_id"] == shop.machine.id
    assert held["lease_until"] > held["started_at"]
    await shop.machine.call(task, "complete")
    assert (await shop.owner("GET", path)).body["lease_until"] is None


async def test_claiming_moves_a_waiting_issue_to_in_progress(shop: Shop) -> None:
    """S11.6."""
    started = await shop.start(ISSUE)
    assert (await shop.issue(started.issue_id))["status"] == "todo"
    await shop.held(started, running=False)
    assert (await shop.issue(started.issue_id))["status"] == "in_progress"
    await assert_coherent(shop.database)


async def test_an_issue_that_somebody_holds_is_passed_over(shop: Shop) -> None:
    """HAZARDS 4: a claim never waits for an issue's lock, so it cannot take part in a deadlock."""
    first, second = await shop.start(ISSUE), await shop.start(ISSUE)
    async with shop.database.transaction() as conn:
        await finish.hold_issue(conn, shop.place.id, first.issue_id or IssueId(uuid7()))
        assert [task["id"] for task in await shop.machine.claim()] == [str(second.task_id)]


async def test_one_task_goes_to_one_of_two_claims(api: Api) -> None:
    shop = await make_shop(api, concurrency=8)
    started = [await shop.start() for _ in range(4)]
    claims = await asyncio.gather(*(shop.machine.claim(limit=2) for _ in range(6)))
    claimed = [task["id"] for tasks in claims for task in tasks]
    assert sorted(claimed) == sorted(str(one.task_id) for one in started)
    assert len({task["lease_token"] for tasks in claims for task in tasks}) == 4


async def test_a_claim_that_another_of_the_same_runtime_overtook_gets_nothing(api: Api) -> None:
    """S11.7: what a claim counts as held must be all that is held, so they go one after the other."""
    shop = await make_shop(api, concurrency=1)
    for _ in range(2):
        await shop.start()
    place, runtime, first, second = (
        shop.place.id,
        RuntimeId(UUID(shop.machine.id)),
        random_token(),
        random_token(),
    )

    async def claim(conn: Conn, turn: UUID) -> runtime_protocol.Claim:
        return await runtime_protocol.claim(
            conn, place, runtime, uuid7(), turn=LeaseToken(turn), limit=1, spare=5, lease_s=30
        )

    async def begin(conn: Conn, turn: UUID) -> bool:
        return await runtime_protocol.begin_claim(conn, place, runtime, LeaseToken(turn), apart=True)

    async with shop.database.connection() as one, shop.database.connection() as other:
        assert await begin(one, first)
        assert await begin(other, second)
        overtaken = await claim(one, first)
        assert (overtaken.in_turn, overtaken.tasks) == (False, [])
        transaction = other.transaction()
        await transaction.start()
        assert len((await claim(other, second)).tasks) == 1
        begins = asyncio.create_task(begin(one, first))
        await until_somebody_waits(shop.database)
        await transaction.commit()
        assert await begins
        late = await claim(one, first)
        assert (late.in_turn, late.tasks) == (True, [])


async def test_a_claim_that_is_overtaken_again_and_again_gets_what_there_is(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11.7: with many claims of one runtime at once, none goes away with nothing because others began meanwhile."""
    shop = await make_shop(api)
    await shop.start()
    begin = runtime_protocol.begin_claim

    async def begin_and_be_overtaken(
        conn: Conn, place: WorkspaceId, runtime: UUID, turn: LeaseToken, *, apart: bool
    ) -> bool:
        begun = await begin(conn, place, runtime, turn, apart=apart)
        return begun and (
            not apart or await begin(conn, place, runtime, LeaseToken(random_token()), apart=True)
        )

    monkeypatch.setattr(runtime_protocol, "begin_claim", begin_and_be_overtaken)
    claimed = await claim_tasks(shop.database, shop.place.id, UUID(shop.machine.id), uuid7(), limit=1)
    assert len(claimed.tasks) == 1


async def test_a_mark_without_a_claim_waits_for_no_disk_and_one_with_it_does(api: Api) -> None:
    """A claim that was answered must survive a crash."""
    shop = await make_shop(api)
    runtime = UUID(shop.machine.id)
    for apart, waits in ((True, "off"), (False, "on")):
        async with shop.database.transaction() as conn:
            assert await runtime_protocol.begin_claim(
                conn, shop.place.id, runtime, LeaseToken(random_token()), apart=apart
            )
            assert await conn.fetchval("SHOW synchronous_commit") == waits


async def test_a_task_goes_only_to_the_runtime_of_its_agent(api: Api, shop: Shop) -> None:
    await shop.start()
    assert await (await make_machine(api, shop.place, "other")).claim() == []


async def test_a_runtime_holds_no_more_than_its_concurrency(api: Api) -> None:
    shop = await make_shop(api, concurrency=2)
    started = [await shop.start() for _ in range(3)]
    held = await shop.machine.claim(limit=10)
    assert [task["id"] for task in held] == [str(one.task_id) for one in started[:2]]
    assert await shop.machine.claim() == []
    assert (await shop.machine.call(held[0], "complete"))[0] == 200
    assert [task["id"] for task in await shop.machine.claim(limit=10)] == [str(started[2].task_id)]


async def test_people_may_allow_a_runtime_fewer_tasks_than_it_takes(api: Api) -> None:
    """S11.7: the claim and the poll of those who wait agree on it; what is held already goes on."""
    shop = await make_shop(api, concurrency=3)
    path = f"/api/runtimes/{shop.machine.id}"
    for _ in range(3):
        await shop.start()
    held = await shop.machine.claim(limit=2)
    assert (await shop.owner("PATCH", path, {"concurrency_limit": 1})).status == 200
    assert [answer["state"] for answer in await shop.machine.renew(*held)] == ["ok", "ok"]
    assert (await shop.machine.claim(), await waiting(shop)) == ([], set())
    for task in held:
        await shop.machine.call(task, "complete")
    assert await waiting(shop) == {UUID(shop.machine.id)}
    assert len(await shop.machine.claim(limit=5)) == 1


async def test_a_deleted_runtime_is_unknown_and_its_tasks_go_on_elsewhere(api: Api, shop: Shop) -> None:
    """S11.5, S11.3: what it holds it may still end while nobody else has it; then the sweep takes it."""
    done, lost = await shop.start(ISSUE), await shop.start(ISSUE)
    first = await shop.held(done)
    assert (await shop.owner("DELETE", f"/api/runtimes/{shop.machine.id}")).status == 204
    assert await shop.machine.beat() == 404
    for path, fields in (("claim", {"claim_id": uuid7()}), ("renew", {"tasks": []})):
        answer = await shop.machine.client(
            "POST", f"/api/runtime/{path}", {"runtime_id": shop.machine.id, **fields}
        )
        assert answer.status == 404
    assert (await shop.machine.call(first, "complete", result="done"))[0] == 200
    new = await make_machine(api, shop.place)  # the same machine, under the same name
    assert new.id != shop.machine.id
    assert await new.claim() == []
    agent = f"/api/agents/{shop.setting.agent_id}"
    assert (await shop.owner("PATCH", agent, {"runtime_id": new.id})).status == 200
    assert [task["id"] for task in await new.claim()] == [str(lost.task_id)]
    await assert_coherent(shop.database)


async def test_of_two_runtimes_only_the_agents_own_gets_its_task_however_it_moves(
    api: Api, shop: Shop
) -> None:
    """S11.3: the binding is looked at once more while the task is taken."""
    other = await make_machine(api, shop.place, "other", concurrency=10)
    agent = f"/api/agents/{shop.setting.agent_id}"
    started = [await shop.start() for _ in range(6)]
    taken: list[tuple[str, str]] = []

    async def claim(machine: Machine) -> None:
        for _ in range(6):
            taken.extend((task["id"], machine.id) for task in await machine.claim())

    async def move() -> None:
        for target in (other.id, shop.machine.id, other.id):
            assert (await shop.owner("PATCH", agent, {"runtime_id": target})).status == 200

    await asyncio.gather(claim(shop.machine), claim(other), move())
    await claim(other)
    assert sorted(task_id for task_id, _ in taken) == sorted(str(one.task_id) for one in started)
    for one in started:
        held_by = str((await shop.task(one.task_id))["runtime_id"])
        assert (str(one.task_id), held_by) in taken


async def test_a_lease_that_ran_out_holds_no_slot(shop: Shop) -> None:
    lost, waiting = await shop.start(), await shop.start()
    await shop.held(lost)
    await shop.end_lease(lost.task_id)
    assert [task["id"] for task in await shop.machine.claim()] == [str(waiting.task_id)]


async def test_a_repeated_claim_gets_the_same_tasks_and_tokens(api: Api) -> None:
    """HAZARDS 14: a claim whose answer is lost."""
    shop = await make_shop(api, concurrency=2)
    await shop.start()
    claim_id = uuid7()
    first = await shop.machine.claim(claim_id=claim_id)
    await shop.start()
    again = await shop.machine.claim(claim_id=claim_id)
    assert [(task["id"], task["lease_token"]) for task in again] == [
        (task["id"], task["lease_token"]) for task in first
    ]
    assert (await shop.machine.call(first[0], "complete"))[0] == 200
    assert len(await shop.machine.claim(claim_id=claim_id)) == 1


async def test_tasks_for_later_and_expired_ones_are_not_claimed(shop: Shop) -> None:
    started = await shop.start()
    for column, sign in (("available_at", "+"), ("expires_at", "-")):
        await execute(
            shop.database, f"UPDATE agent_task SET {column} = clock_timestamp() {sign} interval '1 minute'"
        )
        assert await shop.machine.claim() == []
        await execute(
            shop.database, "UPDATE agent_task SET available_at = clock_timestamp(), expires_at = NULL"
        )
    assert [task["id"] for task in await shop.machine.claim()] == [str(started.task_id)]


async def test_a_bare_task_that_is_not_its_runs_ends_with_its_run(shop: Shop) -> None:
    """S4.7: checked once more when it is claimed."""
    started = await shop.start()
    other = await shop.api.place("other")
    await execute(
        shop.database, "UPDATE autopilot_run SET workspace_id = $2 WHERE id = $1", started.run_id, other.id
    )
    assert await shop.machine.claim() == []
    run = await shop.run(started.run_id)
    assert (run["status"], run["reason_code"]) == ("failed", "target_unavailable")
    assert (await shop.task(started.task_id))["status"] == "failed"


async def test_a_waiting_claim_is_answered_when_a_task_appears(shop: Shop) -> None:
    """S1.2: without NATS within a second."""
    await execute(shop.database, "DELETE FROM runtime_heartbeat")
    waiting = asyncio.create_task(shop.machine.claim(wait_s=60))
    await _until_it_has_looked(shop)
    started = await shop.start()
    async with asyncio.timeout(30):
        assert [task["id"] for task in await waiting] == [str(started.task_id)]


async def test_a_claim_that_waits_in_vain_is_answered_with_nothing(shop: Shop) -> None:
    async with asyncio.timeout(20):
        assert await shop.machine.claim(wait_s=0.05) == []


async def test_starting_is_repeatable_and_needs_the_lease(shop: Shop) -> None:
    started = await shop.start()
    task = await shop.held(started, running=False)
    assert await shop.machine.call(task, "start") == (200, {"status": "running"})
    began = (await shop.task(started.task_id))["started_at"]
    assert await shop.machine.call(task, "start") == (200, {"status": "running"})
    row = await shop.task(started.task_id)
    assert (row["status"], row["started_at"]) == ("running", began)
    status, problem = await shop.machine.call({**task, "lease_token": str(uuid7())}, "start")
    assert (status, problem["code"]) == (409, "lease_lost")
    assert (await shop.machine.call({**task, "id": str(uuid7())}, "start"))[0] == 404


async def test_one_call_renews_all_that_is_held(api: Api) -> None:
    """HAZARDS 15; S11.7."""
    shop = await make_shop(api, concurrency=3)
    ours, cancelled, lost = [await shop.start() for _ in range(3)]
    tasks = await shop.machine.claim(limit=3)
    for task in tasks:
        await shop.machine.call(task, "start")
    await shop.owner("POST", f"/api/tasks/{cancelled.task_id}/cancel")
    stolen = {**tasks[2], "lease_token": str(uuid7())}
    await shop.end_lease(ours.task_id)
    ((began_at,),) = await fetch(shop.database, "SELECT clock_timestamp()")
    answers = await shop.machine.renew(*tasks[:2], stolen, progress="halfway")
    ((ended_at,),) = await fetch(shop.database, "SELECT clock_timestamp()")
    assert [answer["state"] for answer in answers] == ["ok", "cancelled", "lost"]
    assert [answer["id"] for answer in answers] == [task["id"] for task in tasks]
    row = await shop.task(ours.task_id)
    assert row["progress"] == "halfway"
    assert began_at <= row["lease_until"] - timedelta(seconds=30) <= ended_at
    assert (await shop.task(lost.task_id))["progress"] is None
    assert (await shop.machine.renew(tasks[0]))[0]["state"] == "ok"
    assert (await shop.task(ours.task_id))["progress"] == "halfway"


async def test_no_renewal_reaches_beyond_the_time_of_a_task(shop: Shop) -> None:
    """S11.7: timeout_s, and half a minute to say so."""
    started = await shop.start()
    task = await shop.held(started)
    began = "UPDATE agent_task SET started_at = clock_timestamp() - interval '{} seconds', claimed_at = clock_timestamp() - interval '2 hours'"
    await execute(shop.database, began.format(3610))
    assert (await shop.machine.renew(task))[0]["state"] == "ok"
    row = await shop.task(started.task_id)
    assert (row["lease_until"] - row["started_at"]).total_seconds() == pytest.approx(3630, abs=0.001)
    await execute(shop.database, began.format(3631))
    assert (await shop.machine.renew(task))[0]["state"] == "lost"


async def test_a_task_that_is_claimed_and_never_started_cannot_be_held_for_ever(shop: Shop) -> None:
    """S11.3: whoever renews without beginning loses it when its time is over, counted from the claim."""
    started = await shop.start(ISSUE)
    task = await shop.held(started, running=False)
    assert (await shop.machine.renew(task))[0]["state"] == "ok"
    await execute(
        shop.database, "UPDATE agent_task SET claimed_at = clock_timestamp() - interval '3631 seconds'"
    )
    assert (await shop.machine.renew(task))[0]["state"] == "lost"
    async with shop.database.transaction() as conn:
        await finish.lose_task(conn, started.task_id, "gone", FailureKind.RUNTIME_LOST)
    assert (await shop.task(started.task_id))["status"] == "queued"


async def test_a_completed_task_answers_its_holder_again(shop: Shop) -> None:
    """HAZARDS 15: completing twice."""
    started = await shop.start()
    task = await shop.held(started)
    assert await shop.machine.call(task, "complete", result="all good") == (
        200,
        {"status": "completed", "changed": True, "retry": False},
    )
    for act, fields in (("complete", {"result": "other"}), ("fail", {"error": "no"})):
        assert await shop.machine.call(task, act, **fields) == (
            200,
            {"status": "completed", "changed": False, "retry": False},
        )
    run = await shop.run(started.run_id)
    assert (run["status"], run["result"]) == ("completed", "all good")
    status, problem = await shop.machine.call({**task, "lease_token": str(uuid7())}, "complete")
    assert (status, problem["code"]) == (409, "lease_lost")
    await assert_coherent(shop.database)


async def test_an_expired_lease_that_nobody_took_still_completes(shop: Shop) -> None:
    """HAZARDS 15: completing late."""
    started = await shop.start()
    task = await shop.held(started)
    await shop.end_lease(started.task_id)
    assert (await shop.machine.call(task, "complete", result="late"))[0] == 200
    assert (await shop.run(started.run_id))["result"] == "late"


async def test_whoever_completes_after_the_lease_was_taken_is_refused(shop: Shop) -> None:
    """LE1: the new owner's result stands."""
    started = await shop.start(ISSUE)
    stale = await shop.held(started)
    await shop.end_lease(started.task_id)
    async with shop.database.transaction() as conn:
        await finish.lose_task(conn, started.task_id, "the runtime was lost", FailureKind.RUNTIME_LOST)
    assert (await shop.machine.call(stale, "complete", result="stale"))[0] == 409
    await execute(shop.database, "UPDATE agent_task SET available_at = clock_timestamp()")
    fresh = await shop.held(started)
    assert fresh["attempt"] == 2
    assert (await shop.machine.renew(stale))[0]["state"] == "lost"
    for act in ("start", "complete", "fail"):
        status, problem = await shop.machine.call(stale, act)
        assert (status, problem["code"]) == (409, "lease_lost")
    assert (await shop.machine.call(fresh, "complete", result="fresh"))[0] == 200
    assert (await shop.task(started.task_id))["result"] == "fresh"
    await assert_coherent(shop.database)


async def test_results_and_errors_have_their_limits(shop: Shop) -> None:
    """S11.7: counted in bytes of UTF-8."""
    started = await shop.start()
    task = await shop.held(started)
    for act, field in (("complete", "result"), ("fail", "error")):
        status, problem = await shop.machine.call(task, act, **{field: "é" * 32_769})
        assert (status, problem["field"]) == (422, field)
        status, problem = await shop.machine.call(task, act, **{field: "a\0b"})
        assert (status, problem["field"]) == (422, field)
    assert (await shop.machine.call(task, "fail", error="é" * 32_768))[0] == 200
    assert len((await shop.task(started.task_id))["error"]) == 4000
    assert len((await shop.run(started.run_id))["failure_reason"]) == 2000


async def test_a_timeout_of_an_issues_task_is_tried_again_later(shop: Shop) -> None:
    """S11.2: the same row after 10 s, then 60 s, three attempts in all; a bare run's is not."""
    started = await shop.start(ISSUE)
    for delay_s in (10, 60):
        task = await shop.held(started)
        assert await shop.machine.call(task, "fail", error="too slow", kind="timeout") == (
            200,
            {"status": "queued", "changed": True, "retry": True},
        )
        row = await shop.task(started.task_id)
        assert (row["available_at"] - row["created_at"]).total_seconds() >= delay_s
        assert await shop.machine.claim() == []
        await execute(shop.database, "UPDATE agent_task SET available_at = clock_timestamp()")
    task = await shop.held(started)
    assert (await shop.machine.call(task, "fail", error="too slow", kind="timeout"))[1]["status"] == "failed"
    run = await shop.run(started.run_id)
    assert (run["status"], run["reason_code"], run["failure_reason"]) == ("failed", "task_failed", "too slow")
    bare = await shop.start()
    assert (await shop.machine.call(await shop.held(bare), "fail", kind="timeout"))[1]["status"] == "failed"
    await assert_coherent(shop.database)


async def _until_it_has_looked(shop: Shop) -> None:
    """Until a claim has found nothing: the heartbeat that it implies tells."""
    async with asyncio.timeout(30):
        while (await shop.owner("GET", f"/api/runtimes/{shop.machine.id}")).body["seen_at"] is None:
            pass
