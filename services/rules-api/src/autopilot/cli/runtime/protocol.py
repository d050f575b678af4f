"""The runtime protocol over HTTP, as a runtime sees it (S11.3)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from autopilot.cli.client import ApiClient
from autopilot.domain.states import FailureKind

_PREFIX = "/api/runtime"
_TIMEOUT_S = 10.0
# Beyond the wait that was asked for: the server's own work and the way back.
_CLAIM_SLACK_S = 15.0


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Who this runtime is, and the rhythm that the server expects, in seconds."""

    runtime_id: str
    heartbeat_s: float
    renew_s: float
    poll_s: float


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task in our hands, by its lease token."""

    id: str
    lease_token: str
    prompt: str
    timeout_s: float
    attempt: int
    max_attempts: int
    workspace_id: str
    agent_id: str
    agent_name: str
    issue_id: str | None = None
    issue_key: str | None = None
    run_id: str | None = None
    autopilot_id: str | None = None
    source: str | None = None
    planned_at: str | None = None


class LeaseState(StrEnum):
    """What the server says of a lease when asked to renew it."""

    OK = "ok"
    LOST = "lost"
    CANCELLED = "cancelled"


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one lease."""

    id: str
    state: LeaseState


class _Claimed(msgspec.Struct):
    tasks: list[Task]


class _Renewals(msgspec.Struct):
    tasks: list[Renewed]


class RuntimeApi:
    """One method for each call. Every one may be repeated: the server does it once."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def register(self, name: str, concurrency: int, capabilities: Mapping[str, str]) -> Registration:
        body = {"name": name, "concurrency": concurrency, "capabilities": capabilities}
        return self._client.decode(await self._post("/register", body), Registration)

    async def heartbeat(
        self,
        runtime_id: str,
        *,
        usable: bool = True,
        detail: str | None = None,
        repair_hint: str | None = None,
    ) -> None:
        said = {} if usable else {"usable": False, "detail": detail, "repair_hint": repair_hint}
        await self._post("/heartbeat", {"runtime_id": runtime_id, **said})

    async def claim(self, runtime_id: str, claim_id: str, limit: int, wait_s: float) -> list[Task]:
        """Wait up to `wait_s` for tasks; the same `claim_id` gives the same tasks again."""
        body = {"runtime_id": runtime_id, "claim_id": claim_id, "limit": limit, "wait_s": wait_s}
        answer = await self._post("/claim", body, timeout_s=wait_s + _CLAIM_SLACK_S)
        return self._client.decode(answer, _Claimed).tasks

    async def start(self, task: Task) -> None:
        await self._post(f"/tasks/{task.id}/start", {"lease_token": task.lease_token})

    async def renew(self, runtime_id: str, held: list[tuple[Task, str | None]]) -> list[Renewed]:
        """Renew all leases in one call; with each task its latest line, or None for no news. In the order asked."""
        tasks = [
            {"id": task.id, "lease_token": task.lease_token, "progress": progress} for task, progress in held
        ]
        answer = await self._post("/renew", {"runtime_id": runtime_id, "tasks": tasks})
        return self._client.decode(answer, _Renewals).tasks

    async def output(self, task: Task, place: int, text: str) -> None:
        """A piece of what the command prints; the same piece again changes nothing."""
        body = {"lease_token": task.lease_token, "place": place, "text": text}
        await self._post(f"/tasks/{task.id}/output", body, timeout_s=3.0)

    async def complete(self, task: Task, result: str) -> None:
        await self._post(f"/tasks/{task.id}/complete", {"lease_token": task.lease_token, "result": result})

    async def fail(self, task: Task, error: str, kind: FailureKind) -> None:
        body = {"lease_token": task.lease_token, "error": error, "kind": kind}
        await self._post(f"/tasks/{task.id}/fail", body)

    async def bye(self, runtime_id: str) -> None:
        await self._post("/bye", {"runtime_id": runtime_id}, timeout_s=3.0)

    async def _post(self, path: str, body: object, *, timeout_s: float = _TIMEOUT_S) -> bytes:
        return await self._client.call("POST", _PREFIX + path, body=body, timeout_s=timeout_s)
