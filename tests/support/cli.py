"""The `autopilot` command as a real process, and a small API of the test's own that loses answers on purpose."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from autopilot.local.ports import free_port

TOKEN = "apt_a-personal-token-of-a-test"
RUNTIME_TOKEN = "apr_a-runtime-token-of-a-test"


class Call(msgspec.Struct, frozen=True):
    """One request that the API received."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


class LoseAnswer(Exception):
    """Do what was asked, then cut the connection instead of answering."""


class FakeApi:
    """Notes every call and answers it with `answer`.

    `lose` and `refuse` say how the next calls of a path go wrong: after their effect, or without any.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.base = ""
        self._faults: dict[str, list[web.Response | type[LoseAnswer]]] = {}
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._port = free_port()  # its own while it is away, too

    async def answer(self, call: Call) -> Any:
        """The JSON for a call, or a response."""
        raise NotImplementedError

    def lose(self, path: str, times: int = 1) -> None:
        """The next answers of this path are lost after the call has had its effect."""
        self._faults.setdefault(path, []).extend([LoseAnswer] * times)

    def refuse(self, path: str, *answers: web.Response) -> None:
        """The next calls of this path are answered like this, and have no effect."""
        self._faults.setdefault(path, []).extend(answers)

    def of(self, path: str) -> list[Call]:
        """The calls whose path ends like this."""
        return [call for call in self.calls if call.path.endswith(path)]

    async def until(self, true: Callable[[], bool], timeout_s: float = 30) -> None:
        """Wait for a state that calls bring about."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(true)

    async def tell(self) -> None:
        """Wake whoever waits with `until`, and the long polls."""
        async with self._changed:
            self._changed.notify_all()

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port."""
        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self.base = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = Call(
            request.method,
            request.path,
            dict(request.query),
            msgspec.json.decode(raw) if raw else None,
            dict(request.headers),
        )
        faults = next(
            (found for path, found in self._faults.items() if call.path.endswith(path) and found), None
        )
        fault = faults.pop(0) if faults else None
        self.calls.append(call)
        await self.tell()
        if isinstance(fault, web.Response):
            return fault
        answer = await self.answer(call)
        await self.tell()
        if fault is LoseAnswer:
            assert request.transport is not None
            request.transport.abort()
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def problem(status: int, code: str, detail: str, **facts: object) -> web.Response:
    """A refusal as the API words it."""
    document = {
        "type": "about:blank",
        "title": f"Title of {status}",
        "status": status,
        "code": code,
        "detail": detail,
    }
    return web.Response(
        body=msgspec.json.encode(document | facts), status=status, content_type="application/problem+json"
    )


class FakeRuntimeApi(FakeApi):
    """The runtime protocol: gives out `queued` tasks, keeps the first outcome of each, and knows the leases' states."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[dict[str, Any]] = []
        self.claims: dict[str, list[dict[str, Any]]] = {}
        self.states: dict[str, str] = {}
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, dict[int, str]] = {}
        self.numbers = {"heartbeat_s": 0.3, "lease_s": 30, "renew_s": 0.2, "poll_s": 5}
        self.runtime_id = str(uuid4())

    async def give(self, **fields: Any) -> dict[str, Any]:
        """Queue a task."""
        task = {
            "id": str(uuid4()),
            "lease_token": str(uuid4()),
            "lease_until": "2026-01-01T00:00:30Z",
            "prompt": "Do it.",
            "attempt": 1,
            "max_attempts": 3,
            "timeout_s": 3600,
            "workspace_id": str(uuid4()),
            "agent_id": str(uuid4()),
            "agent_name": "Ada",
            "issue_id": None,
            "issue_key": None,
            "run_id": str(uuid4()),
            "autopilot_id": str(uuid4()),
            "source": "manual",
            "planned_at": None,
        } | fields
        self.queued.append(task)
        await self.tell()
        return task

    async def outcome(self, task: dict[str, Any], timeout_s: float = 30) -> dict[str, Any]:
        """How the task ended, once it has."""
        await self.until(lambda: task["id"] in self.outcomes, timeout_s)
        return self.outcomes[task["id"]]

    async def answer(self, call: Call) -> Any:
        action = call.path.removeprefix("/api/runtime/")
        if action == "register":
            return {"runtime_id": self.runtime_id, "name": call.body["name"], "concurrency": 1} | self.numbers
        if action == "claim":
            return {"tasks": await self._claim(call.body)}
        if action == "renew":
            return {
                "tasks": [
                    {
                        "id": task["id"],
                        "state": self.states.get(task["lease_token"], "ok"),
                        "lease_until": None,
                    }
                    for task in call.body["tasks"]
                ]
            }
        if action in ("heartbeat", "bye"):
            return {"runtime_id": call.body["runtime_id"]}
        _, task_id, action = action.split("/")
        if self.states.get(call.body["lease_token"], "ok") != "ok":
            return problem(409, "lease_lost", "Somebody else holds it.")
        if action == "start":
            return {"status": "running"}
        if action == "output":
            self.outputs.setdefault(task_id, {})[call.body["place"]] = call.body["text"]
            return {"status": "running"}
        changed = task_id not in self.outcomes
        self.outcomes.setdefault(task_id, {"action": action, **call.body})
        return {"status": "completed", "changed": changed, "retry": False}

    async def _claim(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if body["claim_id"] not in self.claims:
            try:
                await self.until(lambda: bool(self.queued), body["wait_s"])
            except TimeoutError:
                return []
            self.claims[body["claim_id"]] = self.queued[: body["limit"]]
            del self.queued[: body["limit"]]
        return self.claims[body["claim_id"]]


class Ran(msgspec.Struct, frozen=True):
    """What a command that ended left."""

    code: int
    out: str
    err: str


def environment(base: str, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "AUTOPILOT_API_URL": base,
        "AUTOPILOT_TOKEN": TOKEN,
        "AUTOPILOT_RUNTIME_TOKEN": RUNTIME_TOKEN,
    } | more


async def autopilot(base: str, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the command to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "autopilot.cli",
        *arguments,
        env=environment(base) if env is None else env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def runtime_process(
    base: str, command: str, *arguments: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`autopilot runtime run --exec command`, ended when the test is over."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "autopilot.cli",
        "runtime",
        "run",
        "--exec",
        command,
        "--name",
        "box",
        *arguments,
        env=environment(base) if env is None else env,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            # Twice: the second kills the commands too, which would otherwise outlive the test.
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), 10)
                    break
                except TimeoutError:
                    continue
            else:
                process.kill()
        await process.communicate()
