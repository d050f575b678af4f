"""GET /api/scheduler/executions: what the scheduler did, for those who may know it (S7.16, S6.6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import Answer, Api, Client, Place
from tests.support.rules import Setting

from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.kit.ids import uuid7
from autopilot.storage.execution_views import END, SQL

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SCHEDULE = "autopilot_schedule_dispatch"
PATH = "/api/scheduler/executions"


async def add(api: Api, scope: object, plan_time: datetime, *, state: str = "SUCCESS", **fields: Any) -> None:
    """An execution as it stands in the table."""
    kind = "trigger" if isinstance(scope, UUID) else "global"
    row = {
        "job_name": SCHEDULE if kind == "trigger" else "sweep",
        "result": {"outcome": "admitted"} if state == "SUCCESS" else None,
        "error_code": "handler_error" if state == "FAILED" else None,
        "error_message": "unexpected RuntimeError" if state == "FAILED" else None,
        "finished_at": None if state == "RUNNING" else plan_time,
        **fields,
    }
    async with api.database.connection() as conn:
        await conn.execute(
            f"""INSERT INTO sys_cron_executions (id, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
                       lease_token, stale_at, started_at, {", ".join(row)})
                VALUES ($1, $2, $3, $4, $5, 3, true, $1, $1, $4, $4, {", ".join(f"${n + 6}" for n in range(len(row)))})""",
            *(uuid7(), kind, str(scope), plan_time, state, *row.values()),
        )


class Rule:
    """A rule of a workspace with one schedule, and the people about it."""

    def __init__(self, place: Place, setting: Setting, autopilot_id: AutopilotId, trigger_id: UUID) -> None:
        self.place = place
        self.setting = setting
        self.autopilot_id = autopilot_id
        self.trigger_id = trigger_id


async def make_rule(api: Api, place: Place) -> Rule:
    async with api.database.transaction() as conn:
        agent_id, runtime_id = await rules.make_agent(conn, place.id, place.owner_id, visibility="workspace")
        setting = Setting(
            workspace_id=place.id, owner_id=place.owner_id, agent_id=agent_id, runtime_id=runtime_id
        )
        autopilot = await rules.make_autopilot(conn, setting)
        trigger = await rules.make_schedule_trigger(conn, setting, autopilot.id)
    return Rule(place, setting, autopilot.id, trigger.id)


@pytest.fixture
async def rule(api: Api) -> Rule:
    return await make_rule(api, await api.place())


async def listed(client: Client, query: str = "") -> list[tuple[str, str]]:
    """Scope and plan time of what a caller sees."""
    answer = await client("GET", PATH + query)
    assert answer.status == 200, answer
    return [(item["scope"], item["plan_time"][11:16]) for item in answer.body["items"]]


async def test_an_owner_sees_plans_of_triggers_and_of_jobs_newest_first(api: Api, rule: Rule) -> None:
    """S7.16"""
    await add(api, rule.trigger_id, NOON)
    await add(api, "all", NOON + timedelta(minutes=1))
    await add(api, rule.trigger_id, NOON + timedelta(minutes=2), state="FAILED")
    trigger = str(rule.trigger_id)
    owner = rule.place.owner
    assert await listed(owner) == [(trigger, "12:02"), ("all", "12:01"), (trigger, "12:00")]
    assert await listed(owner, f"?job={SCHEDULE}") == [(trigger, "12:02"), (trigger, "12:00")]
    assert await listed(owner, "?job=sweep") == [("all", "12:01")]
    assert await listed(owner, "?job=unknown") == []
    assert await listed(owner, "?scope=all") == [("all", "12:01")]
    assert await listed(owner, f"?scope={trigger}") == [(trigger, "12:02"), (trigger, "12:00")]
    assert await listed(owner, "?status=FAILED") == [(trigger, "12:02")]
    assert await listed(owner, "?status=SUCCESS&job=sweep") == [("all", "12:01")]
    assert await listed(owner, "?status=RUNNING") == []


async def test_an_execution_tells_its_facts_and_no_token(api: Api, rule: Rule) -> None:
    """S7.16, S9.12; a job's result speaks of all workspaces and is not shown (S6.6)."""
    await add(api, rule.trigger_id, NOON, state="RUNNING")
    await add(api, "all", NOON - timedelta(hours=1), result={"paused": 3})
    await add(api, rule.trigger_id, NOON - timedelta(hours=2), state="FAILED", next_retry_at=NOON)
    running, job, failed = (await rule.place.owner("GET", PATH)).body["items"]
    assert (running["status"], running["lease_until"]) == ("RUNNING", "2026-05-01T12:00:00Z")
    assert running["autopilot_id"] == str(rule.autopilot_id)
    assert (job["result"], job["autopilot_id"], job["scope_kind"]) == (None, None, "global")
    assert (failed["error_code"], failed["error_message"]) == ("handler_error", "unexpected RuntimeError")
    assert (failed["next_retry_at"], failed["attempts"], failed["max_attempts"]) == (
        "2026-05-01T12:00:00Z",
        1,
        3,
    )
    assert not [name for name in running if "token" in name]


async def test_who_may_write_a_rule_sees_its_triggers_and_nobody_else_anything(api: Api, rule: Rule) -> None:
    """S7.16"""
    await add(api, rule.trigger_id, NOON)
    _, admin = await api.joined(rule.place, "admin", Role.ADMIN)
    user_id, writer = await api.joined(rule.place, "writer")
    _, member = await api.joined(rule.place, "member")
    await rule.place.owner(
        "POST", f"/api/autopilots/{rule.autopilot_id}/collaborators", {"user_id": str(user_id)}
    )
    mine = f"?scope={rule.trigger_id}"
    assert len(await listed(admin)) == 1
    assert len(await listed(writer, mine)) == 1
    await rule.place.owner("DELETE", f"/api/autopilots/{rule.autopilot_id}/triggers/{rule.trigger_id}")
    assert len(await listed(writer, mine)) == 1, "the history of a deleted trigger stays"
    refusals = {
        "no scope": await writer("GET", PATH),
        "a job": await writer("GET", PATH + "?job=sweep"),
        "no right": await member("GET", PATH + mine),
    }
    assert {why: answer.status for why, answer in refusals.items()} == dict.fromkeys(refusals, 403)
    assert (await writer("GET", PATH + f"?scope={uuid7()}")).status == 404
    service = await api.program(rule.place, TokenKind.SERVICE)
    assert (await service("GET", PATH)).status == 403


async def test_other_workspaces_do_not_exist(api: Api, rule: Rule) -> None:
    """S6.6"""
    other = await make_rule(api, await api.place("other"))
    await add(api, rule.trigger_id, NOON)
    await add(api, other.trigger_id, NOON)
    assert await listed(rule.place.owner) == [(str(rule.trigger_id), "12:00")]
    assert await listed(rule.place.owner, f"?scope={other.trigger_id}") == []
    _, member = await api.joined(rule.place, "member")
    assert (await member("GET", PATH + f"?scope={other.trigger_id}")).status == 404


async def test_pages_show_each_execution_once_in_order(api: Api, rule: Rule) -> None:
    """S13"""
    second = await make_rule(api, rule.place)
    for minute in range(7):
        state = "FAILED" if minute % 2 else "SUCCESS"
        for scope in (rule.trigger_id, second.trigger_id, "all"):
            await add(api, scope, NOON + timedelta(minutes=minute), state=state)
    for status, count in (("", 21), ("&status=FAILED", 9)):
        seen: list[tuple[str, str]] = []
        cursor = ""
        while True:
            answer: Answer = await rule.place.owner("GET", f"{PATH}?limit=4{status}{cursor}")
            seen += [(item["plan_time"], item["id"]) for item in answer.body["items"]]
            if answer.body["next_cursor"] is None:
                break
            assert len(answer.body["items"]) == 4
            cursor = f"&cursor={answer.body['next_cursor']}"
        assert len(seen) == len(set(seen)) == count
        assert seen == sorted(seen, reverse=True)


async def test_what_cannot_be_asked_is_refused(api: Api, rule: Rule) -> None:
    owner = rule.place.owner
    assert (await owner("GET", PATH + "?status=done")).problem()[::2] == (422, "status")
    assert (await owner("GET", PATH + "?cursor=AAAA")).problem() == (400, "bad_cursor", "cursor")
    gone = "AAAAAAAAAAAAAAAAAAAAAA"
    assert (await owner("GET", PATH + f"?cursor={gone}")).problem() == (400, "bad_cursor", "cursor")


async def test_the_lists_are_read_by_index(api: Api, rule: Rule) -> None:
    """S7.16: thousands of plans of others are not looked at."""
    async with api.database.connection() as conn:
        await conn.execute(
            """INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
                      lease_token, stale_at, finished_at)
               SELECT gen_random_uuid(), $1, 'trigger', md5((n % 100)::text)::uuid::text, $2::timestamptz + make_interval(mins => n), 'SUCCESS',
                      3, true, gen_random_uuid(), gen_random_uuid(), now(), clock_timestamp() FROM generate_series(1, 20000) n""",
            *(SCHEDULE, NOON),
        )
        await conn.execute("ANALYZE sys_cron_executions")
        plans = {
            "list_of_triggers": (rule.place.id, SCHEDULE, None, *END, None, 21),
            "list_failed_of_triggers": (rule.place.id, SCHEDULE, None, *END, 21),
            "list_of_jobs": (None, None, *END, None, 21),
        }
        for name, given in plans.items():
            rows = await conn.fetch(f"EXPLAIN {SQL[name]}", *given)
            text = "\n".join(row[0] for row in rows)
            assert "Seq Scan on sys_cron_executions" not in text, text
