"""Explain: why a run waits, was skipped, failed, or is somebody else's (S13.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import running_api
from tests.support.cli import autopilot, environment
from tests.support.dispatching import admit_one, drain, execute, fetch, worker
from tests.support.explaining import check, codes, explained, fact
from tests.support.scheduling import Scheduler, due_trigger, runs_of
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import AutopilotId, RunId
from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import AssigneeType, ExecutionMode, OverlapPolicy, Source
from autopilot.kit.ids import uuid7


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    async with running_api(postgres_url) as api:
        yield await make_shop(api)


async def pending(shop: Shop, **fields: Any) -> tuple[AutopilotId, RunId]:
    rule = await shop.rule(**fields)
    return rule, await admit_one(shop.database, rule)


async def test_a_run_that_waits_for_its_turn_tells_how_many_are_ahead(shop: Shop) -> None:
    """S13.3: stuck pending; with nobody to take it the next step is to look for a dispatcher."""
    await pending(shop)
    rule, run_id = await pending(shop)
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert (answer["verdict"], fact(answer, "ahead"), fact(answer, "attempts")) == ("queued", 1, 0)
    assert "Nothing" in answer["next_step"]
    await execute(shop.database, "UPDATE dispatch_queue SET enqueued_at = enqueued_at - interval '5 minutes'")
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert "for 5 min" in answer["summary"]
    assert "See that a dispatcher runs" in answer["next_step"]


@pytest.mark.parametrize(("seconds", "verdict"), [(20, "leased"), (-5, "lease_expired")])
async def test_a_run_in_the_hands_of_a_dispatcher_tells_until_when(
    shop: Shop, seconds: int, verdict: str
) -> None:
    rule, run_id = await pending(shop)
    await execute(
        shop.database,
        """UPDATE dispatch_queue SET lease_token = gen_random_uuid(), claims = 2,
                  lease_until = clock_timestamp() + make_interval(secs => $1)""",
        seconds,
    )
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert (answer["verdict"], fact(answer, "claims")) == (verdict, 2)
    assert fact(answer, "lease_until") is not None
    assert "token" not in str(answer)


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        ("retry", "retrying", "2 of 5 attempts failed, the last with: it broke."),
        ("paced", "paced", "has its slot at"),
    ],
)
async def test_a_run_put_back_tells_when_it_comes_again(
    shop: Shop, kind: str, verdict: str, said: str
) -> None:
    """S10.2, S10.3"""
    rule, run_id = await pending(shop)
    await execute(shop.database, "DELETE FROM dispatch_queue")
    await execute(
        shop.database,
        """INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, attempts, last_error, available_at, enqueued_at)
           VALUES ($1, $2, $3, 2, 'it broke', clock_timestamp() + interval '8 seconds', clock_timestamp())""",
        *(kind, run_id, rule),
    )
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert (answer["verdict"], said in answer["summary"]) == (verdict, True), answer["summary"]
    assert fact(answer, "available_at") is not None
    await execute(
        shop.database, "UPDATE dispatch_deferred SET available_at = available_at - interval '1 min'"
    )
    late = await explained(shop.owner, rule, run_id=run_id)
    assert (late["verdict"], "no dispatcher has taken it" in late["summary"]) == (verdict, True)
    assert "See that a dispatcher runs" in late["next_step"]


async def test_a_run_without_a_place_is_reported_as_impossible(shop: Shop) -> None:
    rule, run_id = await pending(shop)
    await execute(shop.database, "DELETE FROM dispatch_queue")
    assert (await explained(shop.owner, rule, run_id=run_id))["verdict"] == "no_entry"


async def test_a_waiter_names_the_run_in_front_and_a_dropped_one_why(shop: Shop) -> None:
    """S3.6"""
    database = shop.database
    rule = await shop.rule(overlap_policy=OverlapPolicy.QUEUE_ONE)
    live = await admit_one(database, rule)
    waiter, dropped = [
        await due_trigger(database, shop.setting, autopilot_id=rule, late_s=late_s) for late_s in (3, 1)
    ]
    await Scheduler(database, batch=1).drain()
    runs = [(await runs_of(database, trigger))[0] for trigger in (waiter, dropped)]
    parked, skipped = sorted(runs, key=lambda run: run["status"] == "skipped")
    answer = await explained(shop.owner, rule, run_id=parked["id"])
    assert (answer["verdict"], fact(answer, "live_runs")) == ("parked", [str(live)])
    assert str(live) in answer["summary"]
    answer = await explained(shop.owner, rule, run_id=skipped["id"])
    assert answer["verdict"] == "already_active"
    assert "overlap policy" in answer["next_step"]


async def test_a_skipped_run_says_why_and_how_things_stand_now(shop: Shop) -> None:
    """S13.3: skipped for a runtime that was offline, and is back."""
    await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=600)
    rule, run_id = await pending(shop)
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert answer["verdict"] == "runtime_offline"
    assert "Start the runtime" in answer["next_step"]
    assert check(answer, "runtime_offline")["facts"]["reason_code"] == "runtime_offline"
    assert codes(answer)[-1] == "runtime_offline"
    await rules.set_runtime(shop.database, shop.setting.runtime_id)
    answer = await explained(shop.owner, rule, run_id=run_id)
    assert answer["verdict"] == "runtime_offline"
    assert codes(answer)[-1] == "ready"


async def test_a_failed_run_carries_its_error(shop: Shop) -> None:
    started = await shop.start()
    task = await shop.held(started)
    await shop.machine.call(task, "fail", error="exit code 3")
    answer = await explained(shop.owner, started.autopilot_id, run_id=started.run_id)
    assert answer["verdict"] == "task_failed"
    assert "exit code 3" in answer["summary"]
    assert "output" in answer["next_step"]


async def test_a_completed_run_is_said_to_have_run_and_an_empty_result_is_flagged(shop: Shop) -> None:
    """CASES OB5"""
    for result, flagged in (("done it", False), ("", True)):
        started = await shop.start()
        task = await shop.held(started)
        await shop.machine.call(task, "complete", result=result)
        answer = await explained(shop.owner, started.autopilot_id, run_id=started.run_id)
        assert answer["verdict"] == "completed"
        assert ("left no result" in answer["summary"]) is flagged


async def test_a_task_tells_what_it_waits_for(shop: Shop) -> None:
    """S11.3, S13.3: a silent runtime, a full one, one that cannot run the agent, none at all, and then work."""
    started = await shop.start()
    rule, run_id = started.autopilot_id, started.run_id

    async def verdict() -> str:
        return str((await explained(shop.owner, rule, run_id=run_id))["verdict"])

    assert await verdict() == "task_queued"
    await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=3_600)
    silent = await explained(shop.owner, rule, run_id=run_id)
    assert silent["verdict"] == "runtime_offline"
    assert "silent for 60 min" in silent["summary"]
    assert "it expires at" in silent["summary"]
    await rules.set_runtime(shop.database, shop.setting.runtime_id, usable=False)
    assert await verdict() == "runtime_unusable"
    await rules.set_runtime(shop.database, shop.setting.runtime_id)
    task = await shop.held(started)
    assert await verdict() == "task_running"
    another = await shop.start()
    busy = await explained(shop.owner, another.autopilot_id, run_id=another.run_id)
    assert (busy["verdict"], fact(busy, "held")) == ("runtime_busy", 1)
    await shop.end_lease(started.task_id)
    assert await verdict() == "runtime_lost"
    assert (await shop.machine.call(task, "complete", result="late"))[0] == 200
    assert await verdict() == "completed"
    await execute(shop.database, "UPDATE agent SET runtime_id = NULL")
    unbound = await explained(shop.owner, another.autopilot_id, run_id=another.run_id)
    assert unbound["verdict"] == "agent_runtime_required"


async def test_an_issue_waits_for_a_person_for_ever_and_says_so(shop: Shop) -> None:
    """S11.6: offline first, then with its task done and the issue put back by a person."""
    started = await shop.start(ExecutionMode.CREATE_ISSUE)
    task = await shop.held(started)
    await shop.owner("PATCH", f"/api/issues/{started.issue_id}", {"status": "backlog"})
    await shop.machine.call(task, "complete", result="done")
    [run] = await fetch(shop.database, "SELECT status FROM autopilot_run WHERE id = $1", started.run_id)
    answer = await explained(shop.owner, started.autopilot_id, run_id=started.run_id)
    assert run["status"] == "issue_created"
    assert answer["verdict"] == "waiting_for_person"
    assert "AUT-1 is backlog" in answer["summary"]


async def test_the_accountable_person_is_traced_to_the_version_that_made_them_so(shop: Shop) -> None:
    """S5.6, S13.3: a collaborator's edit of the trigger re-stamps it; then they leave."""
    database = shop.database
    rule = await shop.rule()
    trigger = await rules.make_webhook_trigger(database, shop.setting, rule)
    user_id, writer = await shop.api.joined(shop.place, "writer")
    await shop.owner("POST", f"/api/autopilots/{rule}/collaborators", {"user_id": str(user_id)})
    path = f"/api/autopilots/{rule}/triggers/{trigger.id}"
    assert (await writer("PATCH", path, {"event_filters": [{"event": "push"}]})).status == 200

    async def fire() -> dict[str, Any]:
        planned = await due_trigger(database, shop.setting, autopilot_id=rule)
        await execute(
            database, "UPDATE autopilot_trigger SET published_by = $2 WHERE id = $1", planned, user_id
        )
        await Scheduler(database).drain()
        [run] = await runs_of(database, planned)
        return await explained(shop.owner, rule, run_id=run["id"])

    mine = check(await fire(), "trigger_owner")
    assert "writer answers for it as the last to publish its trigger" in mine["text"]
    assert mine["facts"]["accountable_id"] == str(user_id)
    assert "next answers" in mine["next_step"]
    await rules.remove_member(database, shop.place.id, user_id)
    left = check(await fire(), "rule_owner")
    assert "owner answers for it as the last person to publish the rule" in left["text"]
    assert "had left" in left["text"]
    by_hand = await admit_one(database, rule, source=Source.MANUAL, clicker=shop.setting.owner_id)
    clicked = check(await explained(shop.owner, rule, run_id=by_hand), "direct_human")
    assert "having started it" in clicked["text"]


async def test_a_squad_names_its_leader_to_those_who_may_know_and_its_gate_to_all(shop: Shop) -> None:
    """S4.2, S4.4, S13.3: no leader; a leader whose private gate is shut for the rule's creator."""
    database = shop.database
    other, _ = await shop.api.joined(shop.place, "other")
    private, _ = await rules.make_agent(database, shop.place.id, other)
    squad = await rules.make_squad(database, shop.place.id, other, shop.setting.agent_id)
    rule = await shop.rule(assignee_type=AssigneeType.SQUAD, assignee_id=squad)
    ready = await explained(shop.owner, rule)
    assert ready["verdict"] == "nothing_stops_it"
    assert "so its leader executes: the agent agent-" in check(ready, "squad_leader")["text"]
    await execute(database, "UPDATE squad SET leader_id = $2 WHERE id = $1", squad, private)
    shut = await explained(shop.owner, rule)
    assert shut["verdict"] == "invocation_not_allowed"
    assert private.hex not in str(shut).replace("-", "")
    assert "its leader executes: its agent" in check(shut, "squad_leader")["text"]
    await execute(database, "UPDATE squad SET leader_id = NULL WHERE id = $1", squad)
    none = await explained(shop.owner, rule)
    assert none["verdict"] == "target_unavailable"
    assert "has no leader" in none["summary"]


async def test_a_rule_that_nothing_stops_says_what_comes_next(shop: Shop) -> None:
    rule = await shop.rule()
    answer = await explained(shop.owner, rule)
    assert (answer["verdict"], codes(answer)[:2]) == ("nothing_stops_it", ["active", "no_trigger"])
    await rules.make_schedule_trigger(shop.database, shop.setting, rule, "0 9 * * *")
    assert "Its next occurrence is" in (await explained(shop.owner, rule))["summary"]
    run_id = await admit_one(shop.database, rule)
    await drain(worker(shop.database))
    answer = await explained(shop.owner, rule)
    assert answer["verdict"] == "nothing_stops_it"
    assert f"The newest run {run_id}: The task waits" in check(answer, "task_queued")["text"]
    await shop.owner("PATCH", f"/api/autopilots/{rule}", {"status": "paused"})
    paused = await explained(shop.owner, rule)
    assert (paused["verdict"], paused["findings"][0]["about"]) == ("autopilot_paused", "autopilot")
    assert "(pause, by owner" in paused["summary"]


async def test_a_question_that_makes_no_sense_is_refused_by_the_name_of_its_field(shop: Shop) -> None:
    """S13.2, S6.6"""
    rule, run_id = await pending(shop)
    path = f"/api/autopilots/{rule}/explain"
    strange = uuid7()
    refused = {
        "at=yesterday": (400, "malformed", "at"),
        "at=2026-01-01T00:00:00": (400, "malformed", "at"),
        "run_id=7": (400, "malformed", "run_id"),
        "when=now": (400, "malformed", "when"),
        f"run_id={run_id}&delivery_id={strange}": (422, "invalid_value", "delivery_id"),
        f"run_id={run_id}&at=2026-01-01T00:00:00Z": (422, "invalid_value", "at"),
        f"run_id={strange}": (404, "not_found", None),
        f"delivery_id={strange}": (404, "not_found", None),
        f"trigger_id={strange}": (404, "not_found", None),
    }
    for query, expected in refused.items():
        assert (await shop.owner("GET", f"{path}?{query}")).problem() == expected, query
    elsewhere = await shop.api.place("other")
    assert (await elsewhere.owner("GET", path)).status == 404
    another, _ = await pending(shop)
    assert (await shop.owner("GET", f"/api/autopilots/{another}/explain?run_id={run_id}")).status == 404


async def test_whoever_may_read_may_ask(shop: Shop) -> None:
    """S6.1, S13.6: members and service tokens; a runtime's token may not."""
    rule, run_id = await pending(shop)
    _, member = await shop.api.joined(shop.place, "member")
    service = await shop.api.program(shop.place, TokenKind.SERVICE)
    runtime = await shop.api.program(shop.place, TokenKind.RUNTIME)
    for client in (member, service):
        assert (await explained(client, rule, run_id=run_id))["verdict"] == "queued"
    assert (await runtime("GET", f"/api/autopilots/{rule}/explain")).status == 403
    assert UUID((await explained(member, rule, run_id=run_id))["asked"]["run_id"]) == run_id


async def test_the_command_prints_the_answer_for_people_and_for_programs(shop: Shop) -> None:
    """S14"""
    rule, run_id = await pending(shop)
    token = await shop.api.token(TokenKind.PERSONAL, shop.place.owner_id)
    env = environment(shop.api.base, AUTOPILOT_TOKEN=token, AUTOPILOT_WORKSPACE=shop.place.slug)
    shown = await autopilot(shop.api.base, "explain", str(rule), "--run", str(run_id), env=env)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["verdict", "why", "next step"]
    assert lines[0].split()[-1] == "queued"
    assert [line.split()[:3] for line in lines[6:]] == [
        ["ok", "run", "admitted"],
        ["note", "attribution", "rule_owner"],
        ["wait", "queue", "queued"],
    ]
    as_json = await autopilot(shop.api.base, "explain", str(rule), "--output", "json", env=env)
    assert json.loads(as_json.out)["verdict"] == "nothing_stops_it"
    refused = await autopilot(shop.api.base, "explain", str(rule), "--at", "noon", env=env)
    assert (refused.code, "at" in refused.err) == (1, True)
