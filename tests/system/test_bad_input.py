"""Bad input at every door: a 4xx that names the field, and nothing changed (S13.2, S9.3, S9.8)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.support.postgres import cloned_database
from tests.support.system import System, eventually, running_system

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

# What changes although nobody asks for anything.
RESTLESS = {"sys_cron_executions", "runtime_heartbeat", "api_token", "alembic_version"}
RULE = "/api/autopilots/{rule}"
HOOK = RULE + "/triggers/{hook}"
CLOCK = RULE + "/triggers/{clock}"
NEW_RULE = {"title": "T", "description": "D", "execution_mode": "run_only"}
LEASE = str(uuid.UUID(int=7))


class Bad(msgspec.Struct, frozen=True):
    """A request that is refused, with status and field."""

    method: str
    path: str
    body: Any
    status: int
    field: str | None
    headers: dict[str, str] = {}


RULES = [
    Bad("POST", "/api/autopilots", {**NEW_RULE, "title": ""}, 422, "title"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "title": "x" * 201}, 422, "title"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "title": 7}, 400, "title"),
    Bad("POST", "/api/autopilots", {"title": "T", "description": "D"}, 400, "execution_mode"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "execution_mode": "sometimes"}, 422, "execution_mode"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "colour": "red"}, 400, "colour"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "assignee_id": "no id"}, 400, "assignee_id"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "assignee_id": str(uuid.UUID(int=1))}, 422, "assignee_id"),
    Bad(
        "POST",
        "/api/autopilots",
        {**NEW_RULE, "issue_title_template": "{{week}}"},
        422,
        "issue_title_template",
    ),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "description": "x" * 65_537}, 422, "description"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "overlap_policy": "perhaps"}, 422, "overlap_policy"),
    Bad("POST", "/api/autopilots", {**NEW_RULE, "subscribers": [str(uuid.UUID(int=1))]}, 422, "subscribers"),
    Bad("POST", "/api/autopilots", [], 400, "body"),
    Bad("POST", "/api/autopilots", b'{"title": ', 400, None),
    Bad("PATCH", RULE, {"status": "asleep"}, 422, "status"),
    Bad("PATCH", RULE, {"title": None}, 400, "title"),
    Bad("PATCH", RULE, {"project_id": str(uuid.UUID(int=1))}, 422, "project_id"),
    Bad("PATCH", RULE, {"title": "Other", "version": 99}, 409, None),
    Bad("GET", "/api/autopilots?limit=0", None, 422, "limit"),
    Bad("GET", "/api/autopilots?limit=many", None, 400, "limit"),
    Bad("GET", "/api/autopilots?cursor=nonsense", None, 400, "cursor"),
    Bad("GET", "/api/autopilots?status=asleep", None, 422, "status"),
    Bad("GET", "/api/autopilots?colour=red", None, 400, "colour"),
    Bad("GET", "/api/autopilots/cron-preview?expr=61+*+*+*+*", None, 400, "expr"),
    Bad("GET", "/api/autopilots/cron-preview?expr=*+*+*+*+*&tz=Mars/Base", None, 400, "tz"),
    Bad("GET", "/api/autopilots/not-an-id", None, 404, None),
    Bad("PUT", RULE, {}, 405, None),
]
TRIGGERS = [
    Bad("POST", RULE + "/triggers", {"kind": "schedule"}, 422, "cron"),
    Bad("POST", RULE + "/triggers", {"kind": "schedule", "cron": "0 25 * * *"}, 422, "cron"),
    Bad("POST", RULE + "/triggers", {"kind": "schedule", "cron": "@daily"}, 422, "cron"),
    Bad(
        "POST",
        RULE + "/triggers",
        {"kind": "schedule", "cron": "* * * * *", "timezone": "CEST"},
        422,
        "timezone",
    ),
    Bad(
        "POST",
        RULE + "/triggers",
        {"kind": "schedule", "cron": "* * * * *", "provider": "github"},
        422,
        "provider",
    ),
    Bad("POST", RULE + "/triggers", {"kind": "webhook", "cron": "* * * * *"}, 422, "cron"),
    Bad("POST", RULE + "/triggers", {"kind": "webhook", "provider": "carrier pigeon"}, 422, "provider"),
    Bad("POST", RULE + "/triggers", {"kind": "webhook", "signing_secret": "short"}, 422, "signing_secret"),
    Bad("POST", RULE + "/triggers", {"kind": "webhook", "event_filters": [{}]}, 422, "event_filters"),
    Bad("POST", RULE + "/triggers", {"kind": "webhook", "pace_per_min": 0}, 422, "pace_per_min"),
    Bad("POST", RULE + "/triggers", {"kind": "doorbell"}, 422, "kind"),
    Bad("PATCH", CLOCK, {"cron": "* * * *"}, 422, "cron"),
    Bad("PATCH", CLOCK, {"kind": "webhook"}, 400, "kind"),
    Bad("PATCH", HOOK, {"cron": "* * * * *"}, 422, "cron"),
    Bad("PUT", HOOK + "/signing-secret", {"secret": "short"}, 422, "secret"),
    Bad(
        "PUT",
        HOOK + "/signing-secret",
        {"secret": "long enough for anybody", "grace_s": 700_000},
        422,
        "grace_s",
    ),
]
WORK = [
    Bad("POST", RULE + "/trigger", {"payload": {}}, 400, "payload"),
    Bad("POST", RULE + "/trigger?wait=11", None, 422, "wait"),
    Bad("POST", RULE + "/trigger", None, 422, "Idempotency-Key", {"Idempotency-Key": "k" * 256}),
    Bad("POST", RULE + "/runs", {"payload": "a word"}, 400, "payload"),
    Bad("POST", RULE + "/runs", {"payload": {"x": "y" * 262_144}}, 422, "payload"),
    Bad("POST", RULE + "/runs", {"event": " "}, 422, "event"),
    Bad("GET", RULE + "/runs?offset=10001", None, 422, "offset"),
    Bad("GET", RULE + "/runs/not-an-id", None, 404, None),
    Bad("PATCH", "/api/issues/{issue}", {"status": "lost"}, 422, "status"),
    Bad("PATCH", "/api/issues/{issue}", {"title": ""}, 422, "title"),
    Bad("POST", "/api/issues/{issue}/comments", {"body": " "}, 422, "body"),
    Bad("POST", "/api/issues/{issue}/comments", {"body": "x" * 65_537}, 422, "body"),
    Bad("GET", "/api/tasks?status=lost", None, 422, "status"),
    Bad("POST", "/api/tasks/{rule}/cancel", None, 404, None),
]
HOUSE = [
    Bad("POST", "/api/agents", {"name": ""}, 422, "name"),
    Bad("POST", "/api/agents", {"name": "n", "runtime_id": str(uuid.UUID(int=1))}, 422, "runtime_id"),
    Bad("POST", "/api/agents", {"name": "n", "visibility": "secret"}, 422, "visibility"),
    Bad("POST", "/api/squads", {"name": "s", "leader_id": str(uuid.UUID(int=1))}, 422, "leader_id"),
    Bad("POST", "/api/projects", {"name": "x" * 101}, 422, "name"),
    Bad("POST", "/api/tokens", {"name": "t", "expires_in_days": 366}, 422, "expires_in_days"),
    Bad("POST", "/api/tokens", {"name": "t", "kind": "golden"}, 422, "kind"),
    Bad("POST", RULE + "/collaborators", {"user_id": str(uuid.UUID(int=1))}, 422, "user_id"),
    Bad("POST", "/api/autopilots", NEW_RULE, 404, None, {"X-Workspace": "elsewhere"}),
    Bad("POST", "/api/autopilots", NEW_RULE, 401, None, {"Authorization": "Bearer ape_nobody"}),
]
RUNTIME = [
    Bad("POST", "/api/runtime/register", {"name": ""}, 422, "name"),
    Bad("POST", "/api/runtime/register", {"name": "r", "concurrency": 0}, 422, "concurrency"),
    Bad("POST", "/api/runtime/register", {}, 400, "name"),
    Bad("POST", "/api/runtime/heartbeat", {"runtime_id": "no id"}, 400, "runtime_id"),
    Bad("POST", "/api/runtime/heartbeat", {"runtime_id": str(uuid.UUID(int=1))}, 404, None),
    Bad("POST", "/api/runtime/claim", {"runtime_id": LEASE, "claim_id": LEASE, "wait_s": 61}, 422, "wait_s"),
    Bad("POST", "/api/runtime/tasks/{task}/start", {"lease_token": LEASE}, 409, None),
    Bad("POST", "/api/runtime/tasks/{task}/complete", {"lease_token": LEASE}, 409, None),
    Bad(
        "POST",
        "/api/runtime/tasks/{task}/complete",
        {"lease_token": LEASE, "result": "x" * 65_537},
        422,
        "result",
    ),
    Bad("POST", "/api/runtime/tasks/{task}/fail", {"lease_token": LEASE, "kind": "bored"}, 422, "kind"),
    Bad("POST", "/api/runtime/tasks/{rule}/complete", {"lease_token": LEASE}, 404, None),
]
WEBHOOKS = [
    Bad("POST", "{hook_token}", b"", 400, "body"),
    Bad("POST", "{hook_token}", b"7", 400, "body"),
    Bad("POST", "{hook_token}", b'{"a": NaN}', 400, "body"),
    Bad("POST", "{hook_token}", b'{"a": "\xff"}', 400, "body"),
    Bad("POST", "{hook_token}", b'{"a": "\\ud800"}', 400, "body"),
    Bad("POST", "{hook_token}", b"[" * 101 + b"]" * 101, 400, "body"),
    Bad(
        "POST", "{hook_token}", b'{"a": 1}', 400, "body", {"Content-Type": "multipart/form-data; boundary=x"}
    ),
    Bad("POST", "{hook_token}", b'{"a": 1}', 415, None, {"Content-Encoding": "gzip"}),
    Bad("POST", "{hook_token}", b" " * 262_145, 413, None),
    Bad("POST", "{hook_token}", b"{}", 400, "Idempotency-Key", {"Idempotency-Key": "k" * 256}),
    Bad("POST", "{hook_token}", b"{}", 400, "event", {"X-GitHub-Event": "e" * 256}),
    Bad("POST", "awt_" + "A" * 43, b"{}", 404, None),
    Bad("POST", "", b"{}", 404, None),
    Bad("GET", "{hook_token}", None, 405, None),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(postgres_admin_url: str, postgres_template: str) -> AsyncIterator[System]:
    """One stack; what is refused never gets as far as NATS."""
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(nats=False, database_url=url) as running,
    ):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def names(system: System) -> AsyncIterator[dict[str, str]]:
    """One of each thing, at rest: its runtime registers and never asks for work."""
    agent = await system.make_agent(await system.make_runtime())
    rule = await system.make_autopilot(agent)
    hook = await system.make_trigger(rule, kind="webhook", provider="github")
    clock = await system.make_trigger(rule, kind="schedule", cron="0 0 1 1 *")
    made = await system.ok("POST", f"/api/autopilots/{rule}/trigger?wait=10")
    run = await system.run_in(rule, made["id"], "issue_created")
    await eventually(lambda: is_told(system), "the run's events numbered")
    yield {
        "rule": rule, "hook": hook["id"], "clock": clock["id"], "issue": run["issue_id"], "task": run["task_id"],
        "hook_token": hook["webhook_token"],
    }  # fmt: skip


@pytest.mark.parametrize("table", ["RULES", "TRIGGERS", "WORK", "HOUSE", "RUNTIME"])
async def test_the_api_refuses_it_by_name_and_changes_nothing(
    system: System, names: dict[str, str], table: str
) -> None:
    before = await state_of(system)
    wrong = []
    for bad in globals()[table]:
        token = system.runtime_token if table == "RUNTIME" else None
        more = {name.replace("-", "_"): value for name, value in bad.headers.items()}
        reply = await system.api(bad.method, bad.path.format(**names), bad.body, token=token, **more)
        told = (reply.status, reply.body.get("field") if isinstance(reply.body, dict) else None)
        if told != (bad.status, bad.field) or not reply.body.get("code"):
            wrong.append(
                f"{bad.method} {bad.path} {str(bad.body)[:80]}: {reply.status} {str(reply.body)[:300]}"
            )
    assert not wrong, "\n".join(wrong)
    assert await state_of(system) == before


async def test_ingress_refuses_it_by_name_and_stores_nothing(system: System, names: dict[str, str]) -> None:
    before = await state_of(system)
    wrong = []
    for bad in WEBHOOKS:
        token = bad.path.format(**names)
        reply = await system.post_webhook(token, bad.body or b"", more=bad.headers, method=bad.method)
        if (reply.status, reply.body.get("field")) != (bad.status, bad.field) or not reply.body.get("code"):
            wrong.append(f"{str(bad.body)[:60]} {bad.headers}: {reply.status} {reply.body}")
    assert not wrong, "\n".join(wrong)
    assert await state_of(system) == before


async def is_told(system: System) -> bool:
    """Whether nothing changes any more of what the run has changed."""
    return not await system.fetch("SELECT 1 FROM run_event_outbox")


async def state_of(system: System) -> dict[str, Any]:
    """A digest of every table."""
    tables = await system.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    found = {}
    for name in (row["tablename"] for row in tables if row["tablename"] not in RESTLESS):
        [row] = await system.fetch(
            f'SELECT count(*) AS n, md5(string_agg(t::text, chr(10) ORDER BY t::text)) AS digest FROM "{name}" t'
        )
        found[name] = (row["n"], row["digest"])
    return found
