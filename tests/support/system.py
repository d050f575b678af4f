"""The four services as processes, a person's and a runtime's view of them, and the invariants looked at all the while."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest
from tests.support.scheduling import YEARLY

from autopilot.local.processes import Child
from autopilot.local.stack import Stack
from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable
from autopilot.storage.invariants import Finding, check_on

T = TypeVar("T")
LIMIT_S = 45.0
CHECK_EVERY_S = 1.0
# A test sends more from one address than any sender does; the limits have tests of their own.
NO_LIMITS = {
    "AUTOPILOT_INGRESS_IP_PER_MIN": "0",
    "AUTOPILOT_INGRESS_BAD_PER_MIN": "0",
    "AUTOPILOT_DISPATCH_PACE_PER_MIN": "6000",
}
COUNT_BYTES = "wc -c | tr -d ' '"  # an agent whose answer only the prompt can give


async def eventually(
    ask: Callable[[], Awaitable[T | None]], what: str, *, within_s: float = LIMIT_S, every_s: float = 0.05
) -> T:
    """The first answer that is neither None nor false; AssertionError after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        found = await ask()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(every_s)


class Reply(msgspec.Struct, frozen=True):
    """A status with its decoded body."""

    status: int
    body: Any
    headers: Mapping[str, str]


class System:
    """One running stack with a workspace, its owner's token, and a client for every door."""

    def __init__(
        self, stack: Stack, session: aiohttp.ClientSession, made: Mapping[str, str], database: Database
    ) -> None:
        self.stack = stack
        self.database = database
        self.workspace = made["workspace"]
        self.token = made["token"]
        self.runtime_token = made["runtime_token"]
        self.findings: list[Finding] = []
        self.checks = 0
        self._session = session

    async def api(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> Reply:
        """One REST call as the owner, or with another token; header names are written with underscores.

        A body of bytes is sent as it is, as application/json.
        """
        sent = {"Authorization": f"Bearer {token or self.token}", "X-Workspace": self.workspace}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        url = self.stack.api_url + path
        async with self._session.request(method, url, data=data, headers=sent) as answer:
            raw = await answer.read()
            return Reply(answer.status, json.loads(raw) if raw else None, answer.headers)

    async def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The body of a call that must succeed."""
        reply = await self.api(method, path, body, **headers)
        assert reply.status < 300, f"{method} {path}: {reply.status} {reply.body}"
        return reply.body

    async def post_webhook(
        self, token: str, payload: Any, *, secret: str | None = None, event: str = "push", delivery: str | None = None,
        url: str | None = None, more: Mapping[str, str] | None = None, method: str = "POST",
    ) -> Reply:  # fmt: skip
        """A delivery as GitHub sends it, signed when there is a secret; `more` headers come on top."""
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        headers = {"Content-Type": "application/json", "X-GitHub-Event": event, **(more or {})}
        if delivery is not None:
            headers["X-GitHub-Delivery"] = delivery
        if secret is not None:
            headers["X-Hub-Signature-256"] = (
                "sha256=" + hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
            )
        path = f"/api/webhooks/autopilots/{token}"
        async with self._session.request(
            method, (url or self.stack.ingress_url) + path, data=raw, headers=headers
        ) as answer:
            body = await answer.read()
            return Reply(answer.status, json.loads(body) if body else None, answer.headers)

    async def make_runtime(self, name: str | None = None, *, online: bool = True) -> str:
        """Register a runtime over the protocol, heard of for as long as a test may take, or gone again; its id."""
        token = self.runtime_token
        name = name or f"runtime-{uuid.uuid4().hex[:8]}"
        made = await self.ok("POST", "/api/runtime/register", {"name": name}, token=token)
        runtime_id = str(made["runtime_id"])
        if online:
            await self.fetch(
                "UPDATE runtime_heartbeat SET seen_at = seen_at + interval '1 hour' WHERE runtime_id = $1",
                uuid.UUID(runtime_id),
            )
        else:
            await self.ok("POST", "/api/runtime/bye", {"runtime_id": runtime_id}, token=token)
        return runtime_id

    async def make_agent(self, runtime_id: str | None, name: str | None = None) -> str:
        """An agent shared with the workspace; its id."""
        name = name or f"agent-{uuid.uuid4().hex[:8]}"
        body = {"name": name, "visibility": "workspace", "runtime_id": runtime_id}
        return str((await self.ok("POST", "/api/agents", body))["id"])

    def runtime_process(self, name: str, command: str = COUNT_BYTES, *, concurrency: int = 4) -> Child:
        """`autopilot runtime run` for the runtime of that name, not started yet."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("AUTOPILOT_")}
        env |= {"AUTOPILOT_API_URL": self.stack.api_url, "AUTOPILOT_RUNTIME_TOKEN": self.runtime_token}
        arguments = ["runtime", "run", "--name", name, "--exec", command, "--concurrency", str(concurrency)]
        program = [sys.executable, "-m", "autopilot.cli", *arguments]
        return Child(name, program, self.stack.logs, env=env)

    @asynccontextmanager
    async def working_runtime(
        self, name: str, command: str = COUNT_BYTES, *, concurrency: int = 4
    ) -> AsyncIterator[str]:
        """An agent whose runtime runs as a process; the agent's id."""
        process = self.runtime_process(name, command, concurrency=concurrency)
        process.start()
        try:
            yield await self.make_agent(await self.runtime_online(name), name)
        finally:
            await asyncio.to_thread(process.stop)

    async def runtime_online(self, name: str) -> str:
        """The id of the runtime of that name once it is online."""

        async def look() -> str | None:
            page = await self.ok("GET", "/api/runtimes?limit=100")
            online = [
                each["id"] for each in page["items"] if (each["name"], each["state"]) == (name, "online")
            ]
            return online[0] if online else None

        return await eventually(look, f"runtime {name} online")

    async def make_autopilot(self, agent_id: str, mode: str = "create_issue", **fields: Any) -> str:
        """An active rule; its id."""
        body = {
            "title": "Look after it", "description": "Do what is needed.", "execution_mode": mode,
            "assignee_type": "agent", "assignee_id": agent_id, **fields,
        }  # fmt: skip
        return str((await self.ok("POST", "/api/autopilots", body))["id"])

    async def make_trigger(self, autopilot_id: str, **fields: Any) -> dict[str, Any]:
        """A trigger as the API shows it to its owner."""
        made: dict[str, Any] = await self.ok("POST", f"/api/autopilots/{autopilot_id}/triggers", fields)
        return made

    async def make_webhook(self, autopilot_id: str, **fields: Any) -> str:
        """A GitHub webhook; the token of its URL."""
        fields = {"kind": "webhook", "provider": "github", **fields}
        return str((await self.make_trigger(autopilot_id, **fields))["webhook_token"])

    async def make_schedule(self, autopilot_id: str) -> str:
        """A schedule with no occurrence about now but those that `make_due` makes; its id."""
        return str((await self.make_trigger(autopilot_id, kind="schedule", cron=YEARLY))["id"])

    async def make_due(self, *trigger_ids: str) -> datetime:
        """Move schedules to the minute that has just begun, as if time had passed; the planned time."""
        rows = await self.fetch(
            """UPDATE autopilot_trigger SET next_run_at = date_trunc('minute', clock_timestamp())
                WHERE id = ANY($1::uuid[]) RETURNING next_run_at""",
            list(trigger_ids),
        )
        assert len(rows) == len(trigger_ids)
        planned: datetime = rows[0]["next_run_at"]
        return planned

    async def run(self, autopilot_id: str, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.ok("GET", f"/api/autopilots/{autopilot_id}/runs/{run_id}")
        return found

    async def run_in(
        self, autopilot_id: str, run_id: str, *statuses: str, within_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """The run once it is in one of those states."""

        async def look() -> dict[str, Any] | None:
            run = await self.run(autopilot_id, run_id)
            return run if run["status"] in statuses else None

        return await eventually(look, f"run {run_id} in {' or '.join(statuses)}", within_s=within_s)

    async def fetch(self, sql: str, *arguments: object) -> list[dict[str, Any]]:
        """Rows, straight from the database."""
        async with self.database.connection() as conn:
            return [dict(row) for row in await conn.fetch(sql, *arguments)]

    async def watch(self) -> None:
        """Look at the invariants every second until cancelled; what breaks one is kept in `findings`."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_EVERY_S)

    async def check(self) -> None:
        try:
            found = await check_on(self.database)
        except DatabaseUnavailable:
            return  # a test took the database away
        self.checks += 1
        self.findings += [finding for finding in found if finding.fatal]


def last_logs(stack: Stack) -> str:
    """The end of every process' log, to read beside a failure."""
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(stack.logs.glob("*.log")))


def show_logs(report: pytest.TestReport, system: object) -> None:
    """Put the logs of a stack that outlives the test into the report of its failure."""
    if report.failed and isinstance(system, System):
        report.sections.append(("logs of the stack", last_logs(system.stack)))


@asynccontextmanager
async def running_system(
    *,
    nats: bool = True,
    replicas: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    database_url: str | None = None,
    watched: bool = True,
) -> AsyncIterator[System]:
    """A whole stack on free ports; at the end, and every second until then unless `watched` is false, every invariant holds.

    It runs a Postgres of its own unless it is given a database. What still runs at the end stops in order.
    """
    with tempfile.TemporaryDirectory(prefix="autopilot-system-") as folder:
        Path(folder).chmod(0o755)
        stack = Stack(
            Path(folder),
            nats=nats,
            replicas=replicas,
            env=NO_LIMITS | dict(env or {}),
            database_url=database_url,
        )
        await asyncio.to_thread(stack.start)
        try:
            made = await asyncio.to_thread(
                stack.run_module, "autopilot.rules_api", "bootstrap", "--workspace", "acme", "--name", "Acme",
                "--email", "ada@example.com", "--json",
            )  # fmt: skip
            timeout = aiohttp.ClientTimeout(total=60)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                Database(stack.database_url, name="system-test", max_size=4) as database,
            ):
                system = System(stack, session, json.loads(made), database)
                watchers = [asyncio.create_task(system.watch())] if watched else []
                try:
                    yield system
                finally:
                    for watcher in watchers:
                        watcher.cancel()
                    await asyncio.gather(*watchers, return_exceptions=True)
                await system.check()
                assert system.checks, "the invariants were never looked at"
                assert not system.findings, "\n".join(str(finding) for finding in system.findings[:10])
            running = [process for process in stack.all_processes() if process.is_running()]
            await asyncio.to_thread(stack.stop)
            stopped = {process.name: process.exit_code for process in running}
            assert set(stopped.values()) <= {0}, f"not every service ended in order (S15): {stopped}"
        except BaseException:
            print(last_logs(stack))
            raise
        finally:
            await asyncio.to_thread(stack.stop)
