"""Runs over REST: asked for by hand and by programs, repeated safely, listed and looked at (S13.1, S13.4, S13.6)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support import rules
from tests.support.api import Answer, Api, Client, ids
from tests.support.dispatching import admit_one, assert_coherent, drain, execute, fetch, receive, worker
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import uuid7

ISSUE = ExecutionMode.CREATE_ISSUE


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


@pytest.fixture
async def rule(shop: Shop) -> AutopilotId:
    return await shop.rule()


async def trigger(client: Client, rule: AutopilotId, wait: float = 0, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client("POST", f"/api/autopilots/{rule}/trigger?wait={wait}", headers=sent)


async def create(
    client: Client, rule: AutopilotId, body: object = None, wait: float = 0, **headers: str
) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client("POST", f"/api/autopilots/{rule}/runs?wait={wait}", body or {}, headers=sent)


async def test_a_manual_run_is_for_the_person_who_clicked(shop: Shop, rule: AutopilotId) -> None:
    """S5.2, S13.6."""
    answer = await trigger(shop.owner, rule)
    assert answer.status == 200
    run = answer.body
    assert (run["source"], run["status"], run["attribution_source"]) == ("manual", "pending", "direct_human")
    assert run["originator_id"] == run["accountable_id"] == str(shop.place.owner_id)
    assert (run["trigger_id"], run["api_token_id"], run["rule_version"]) == (None, None, 1)
    await drain(worker(shop.database))
    found = (await shop.owner("GET", f"/api/autopilots/{rule}/runs/{run['id']}")).body
    assert (found["id"], found["status"]) == (run["id"], "running")
    await assert_coherent(shop.database)


async def test_an_api_run_is_nobodys_click(api: Api, shop: Shop, rule: AutopilotId) -> None:
    """S13.6: no originator, the token kept, accountable from the rule's owner on."""
    service = await api.program(shop.place, TokenKind.SERVICE)
    for client in (shop.owner, service):
        run = (await create(client, rule, {"event": "deploy", "payload": {"n": 1}})).body
        assert (run["source"], run["originator_id"]) == ("api", None)
        assert (run["attribution_source"], run["accountable_id"]) == ("rule_owner", str(shop.place.owner_id))
        assert run["api_token_id"] is not None
        assert run["event"] == "deploy"
    tokens = await fetch(shop.database, "SELECT DISTINCT api_token_id FROM autopilot_run")
    assert len(tokens) == 2


async def test_who_may_run_a_rule(api: Api, shop: Shop, rule: AutopilotId) -> None:
    """S6.2, S13.6: writers; a service token only over the API."""
    _, mia = await api.joined(shop.place, "mia")
    assert (await trigger(mia, rule)).status == 403
    assert (await create(mia, rule)).status == 403
    service = await api.program(shop.place, TokenKind.SERVICE)
    assert (await trigger(service, rule)).problem()[:2] == (403, "wrong_token_kind")
    other = await api.place("other")
    assert (await trigger(other.owner, rule)).status == 404
    for client in (other.owner, await api.program(other, TokenKind.SERVICE)):
        assert (await create(client, rule)).status == 404
    assert await fetch(shop.database, "SELECT id FROM autopilot_run") == []


async def test_a_manual_run_is_judged_for_who_clicked_an_automated_one_for_the_creator(
    api: Api, shop: Shop
) -> None:
    """S4.4, S6.7, AT1."""
    admin_id, admin = await api.joined(shop.place, "ada", Role.ADMIN)
    agent_id, _ = await rules.make_agent(
        shop.database, shop.place.id, shop.place.owner_id, runtime_id=shop.setting.runtime_id
    )
    rule = await shop.rule(assignee_id=agent_id)
    refused = await trigger(admin, rule)
    assert (refused.status, refused.body["status"]) == (200, "skipped")
    assert refused.body["reason_code"] == "invocation_not_allowed"
    assert refused.body["failure_reason"]
    assert (await create(admin, rule)).body["status"] == "pending"
    await execute(
        shop.database,
        "INSERT INTO agent_share (workspace_id, agent_id, user_id) VALUES ($1, $2, $3)",
        *(shop.place.id, agent_id, admin_id),
    )
    assert (await trigger(admin, rule)).body["status"] == "pending"


async def test_a_rule_that_is_not_active_takes_no_run(shop: Shop, rule: AutopilotId) -> None:
    """S4.2: 409 with the code; a key that has its run already still answers with it."""
    first = (await trigger(shop.owner, rule, Idempotency_Key="k")).body
    for status, code in (("paused", "autopilot_paused"), ("archived", "autopilot_archived")):
        await execute(
            shop.database,
            "UPDATE autopilot SET status = $2, archived_at = CASE WHEN $2 = 'archived' THEN now() END WHERE id = $1",
            *(rule, status),
        )
        assert (await trigger(shop.owner, rule)).problem() == (409, code, None)
        assert (await create(shop.owner, rule)).problem() == (409, code, None)
        assert (await trigger(shop.owner, rule, Idempotency_Key="k")).body["id"] == first["id"]
    assert len(await fetch(shop.database, "SELECT id FROM autopilot_run")) == 1


async def test_a_run_that_cannot_be_is_skipped_with_its_reason(shop: Shop, rule: AutopilotId) -> None:
    """S2.3, S13.1."""
    await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=60)
    answer = await trigger(shop.owner, rule, wait=10)
    assert (answer.status, answer.body["status"]) == (200, "skipped")
    assert (answer.body["reason_code"], answer.body["timeline"]["finished_at"]) == (
        "runtime_offline",
        answer.body["completed_at"],
    )


async def test_the_answer_waits_until_the_run_starts(shop: Shop, rule: AutopilotId) -> None:
    """S13.1."""
    asked = asyncio.create_task(trigger(shop.owner, rule, wait=10))
    async with asyncio.timeout(30):
        while not await fetch(shop.database, "SELECT id FROM autopilot_run"):
            pass
        await drain(worker(shop.database))
        assert (await asked).body["status"] == "running"


async def test_a_wait_ends_with_the_run_as_it_is(shop: Shop, rule: AutopilotId) -> None:
    async with asyncio.timeout(9):  # less than it waits at most
        assert (await trigger(shop.owner, rule, wait=0.05)).body["status"] == "pending"
    assert (await trigger(shop.owner, rule, wait=11)).problem()[::2] == (422, "wait")


async def test_one_key_makes_one_run(api: Api, shop: Shop, rule: AutopilotId) -> None:
    """S13.4: of one caller, source and rule, however many ask at once; another body is refused."""
    body = {"payload": [1]}
    answers = await asyncio.gather(*(create(shop.owner, rule, body, Idempotency_Key="k") for _ in range(6)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["id"] for answer in answers}) == 1
    assert (await create(shop.owner, rule, {"payload": [2]}, Idempotency_Key="k")).problem() == (
        422,
        "idempotency_key_reused",
        "Idempotency-Key",
    )
    service = await api.program(shop.place, TokenKind.SERVICE)
    others = [
        await create(service, rule, body, Idempotency_Key="k"),
        await create(shop.owner, await shop.rule(), body, Idempotency_Key="k"),
        await trigger(shop.owner, rule, Idempotency_Key="k"),
        await create(shop.owner, rule, body, Idempotency_Key=" "),
        await create(shop.owner, rule, body, Idempotency_Key="x" * 255),
    ]
    assert len({answer.body["id"] for answer in others} | {answers[0].body["id"]}) == 6
    assert (await create(shop.owner, rule, body, Idempotency_Key="x" * 256)).problem()[::2] == (
        422,
        "Idempotency-Key",
    )


async def test_a_manual_run_takes_no_fields(shop: Shop, rule: AutopilotId) -> None:
    """S13.4."""
    path = f"/api/autopilots/{rule}/trigger?wait=0"
    assert (await shop.owner("POST", path, {"payload": {}})).problem() == (400, "malformed", "payload")
    assert (await shop.owner("POST", path, {})).status == 200


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b'{"payload": {"big": 123456789012345678901234567890}}', {"big": 123456789012345678901234567890}),
        (b'{"payload": [1, {"a": "\\u0000"}]}', [1, {"a": "\0"}]),
        (b'{"payload": null}', None),
        (b"{}", None),
    ],
)
async def test_a_payload_is_kept_exactly(shop: Shop, rule: AutopilotId, sent: bytes, shown: Any) -> None:
    answer = await shop.owner("POST", f"/api/autopilots/{rule}/runs?wait=0", raw=sent)
    assert answer.status == 200, answer.body
    assert (await shop.owner("GET", f"/api/autopilots/{rule}/runs/{answer.body['id']}")).body[
        "payload"
    ] == shown
    await drain(worker(shop.database))
    assert (await fetch(shop.database, "SELECT status FROM autopilot_run"))[0]["status"] == "running"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"payload": 7}, (400, "malformed", "payload")),
        ({"payload": "text"}, (400, "malformed", "payload")),
        ({"payload": {"a": "x" * 262_144}}, (422, "invalid_value", "payload")),
        ({"event": ""}, (422, "invalid_value", "event")),
        ({"event": "x" * 256}, (422, "invalid_value", "event")),
        ({"events": "x"}, (400, "malformed", "events")),
    ],
)
async def test_a_payload_has_its_limits(
    shop: Shop, rule: AutopilotId, body: object, problem: tuple[int, str, str]
) -> None:
    """S13.4."""
    assert (await create(shop.owner, rule, body)).problem() == problem


async def test_a_payload_is_for_those_who_may_write(api: Api, shop: Shop, rule: AutopilotId) -> None:
    """S6.5: for api runs, and for webhooks through their delivery."""
    _, mia = await api.joined(shop.place, "mia")
    service = await api.program(shop.place, TokenKind.SERVICE)
    called = (await create(shop.owner, rule, {"payload": {"secret": 1}})).body["id"]
    hook = await rules.make_webhook_trigger(shop.database, shop.setting, rule, provider="github")
    run_id, delivery_id = await receive(shop.database, hook.id, b'{"ref": "main"}', event="github.push")
    large = {"commits": ["fix the layout"] * 200}
    large_id, _ = await receive(shop.database, hook.id, json.dumps(large).encode())
    for id_, payload in ((called, {"secret": 1}), (run_id, {"ref": "main"}), (large_id, large)):
        path = f"/api/autopilots/{rule}/runs/{id_}"
        assert (await shop.owner("GET", path)).body["payload"] == payload
        assert (await mia("GET", path)).body["payload"] is None
        assert (await service("GET", path)).body["payload"] is None
    run = (await shop.owner("GET", f"/api/autopilots/{rule}/runs/{run_id}")).body
    assert (run["event"], run["delivery_id"]) == ("github.push", str(delivery_id))
    assert run["timeline"]["received_at"] is not None
    assert "payload" not in (await shop.owner("GET", f"/api/autopilots/{rule}/runs")).body["items"][0]
    await execute(shop.database, "DELETE FROM webhook_body")
    expired = (await shop.owner("GET", f"/api/autopilots/{rule}/runs/{run_id}")).body
    assert (expired["payload"], expired["payload_expired"]) == (None, True)


async def test_a_run_shows_each_step_of_its_way(shop: Shop) -> None:
    started = await shop.start(ISSUE)
    task = await shop.held(started)
    await shop.machine.renew(task, progress="reading")
    run = (await shop.owner("GET", started.path)).body
    assert (run["status"], run["issue_key"], run["issue_status"]) == ("issue_created", "AUT-1", "in_progress")
    assert (run["task_status"], run["progress"], run["runtime_id"]) == ("running", "reading", shop.machine.id)
    assert run["timeline"]["finished_at"] is None
    await shop.machine.call(task, "complete", result="fine")
    run = (await shop.owner("GET", started.path)).body
    assert (run["status"], run["result"], run["task_status"]) == ("completed", "fine", "completed")
    steps = ("admitted", "dispatched", "claimed", "task_started", "task_finished", "finished")
    times = [run["timeline"][f"{step}_at"] for step in steps]
    assert None not in times
    assert times == sorted(times)


async def test_a_run_shows_attempts_next_attempt_lease_and_pace(shop: Shop, rule: AutopilotId) -> None:
    """S10.1, S10.3."""
    run_id = await admit_one(shop.database, rule)
    path = f"/api/autopilots/{rule}/runs/{run_id}"
    await execute(
        shop.database,
        "UPDATE dispatch_queue SET lease_token = gen_random_uuid(), lease_until = clock_timestamp() + interval '9 s', attempts = 2",
    )
    run = (await shop.owner("GET", path)).body
    assert (run["dispatch_attempts"], run["lease_until"] is not None, run["next_attempt_at"]) == (
        2,
        True,
        None,
    )
    await execute(
        shop.database,
        """WITH moved AS (DELETE FROM dispatch_queue RETURNING run_id, autopilot_id)
           INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, attempts, last_error, available_at, enqueued_at)
           SELECT 'retry', run_id, autopilot_id, 3, 'no luck', '2030-01-01', now() FROM moved""",
    )
    run = (await shop.owner("GET", path)).body
    assert (run["dispatch_attempts"], run["last_dispatch_error"]) == (3, "no luck")
    assert (run["next_attempt_at"], run["lease_until"], run["paced"]) == ("2030-01-01T00:00:00Z", None, False)
    await execute(shop.database, "UPDATE dispatch_deferred SET kind = 'paced'")
    run = (await shop.owner("GET", path)).body
    assert (run["next_attempt_at"], run["paced"], run["parked"]) == ("2030-01-01T00:00:00Z", True, False)


async def test_runs_are_listed_newest_first_by_cursor_or_offset(shop: Shop, rule: AutopilotId) -> None:
    """S13: not both, and an offset of 10,000 at most."""
    made = [await admit_one(shop.database, rule) for _ in range(5)][::-1]
    path = f"/api/autopilots/{rule}/runs"
    first = await shop.owner("GET", f"{path}?limit=2")
    cursor = first.body["next_cursor"]
    assert ids(first) == made[:2]
    assert ids(await shop.owner("GET", f"{path}?limit=2&cursor={cursor}")) == made[2:4]
    assert ids(await shop.owner("GET", f"{path}?limit=2&offset=3")) == made[3:]
    assert (await shop.owner("GET", f"{path}?offset=1&cursor={cursor}")).problem() == (
        400,
        "malformed",
        "offset",
    )
    assert (await shop.owner("GET", f"{path}?offset=10001")).problem() == (422, "invalid_value", "offset")
    assert ids(await shop.owner("GET", f"{path}?offset=10000")) == []


async def test_runs_of_other_rules_and_workspaces_do_not_exist(
    api: Api, shop: Shop, rule: AutopilotId
) -> None:
    """S6.6."""
    run_id = await admit_one(shop.database, rule)
    other = await api.place("other")
    assert (await other.owner("GET", f"/api/autopilots/{rule}/runs")).status == 404
    assert (await other.owner("GET", f"/api/autopilots/{rule}/runs/{run_id}")).status == 404
    assert (await shop.owner("GET", f"/api/autopilots/{await shop.rule()}/runs/{run_id}")).status == 404
    assert (await shop.owner("GET", f"/api/autopilots/{rule}/runs/{uuid7()}")).status == 404
