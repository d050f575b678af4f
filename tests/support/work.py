"""A workspace with a machine that works for it: runs started by the real dispatcher, tasks claimed over the real protocol."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from tests.support import rules
from tests.support.api import Api, Client, Place
from tests.support.dispatching import admit_one, drain, fetch, worker
from tests.support.rules import Setting

from autopilot.domain.ids import AgentId, AutopilotId, IssueId, RunId, RuntimeId, TaskId
from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import uuid7


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the dispatcher has started, with what it made."""

    autopilot_id: AutopilotId
    run_id: RunId
    task_id: TaskId
    issue_id: IssueId | None

    @property
    def path(self) -> str:
        return f"/api/autopilots/{self.autopilot_id}/runs/{self.run_id}"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A registered runtime and its client."""

    client: Client
    id: str

    async def claim(
        self, *, wait_s: float = 0, limit: int = 1, claim_id: UUID | None = None
    ) -> list[dict[str, Any]]:
        """The tasks of one claim, under a new claim id unless one is given."""
        answer = await self.client(
            "POST",
            "/api/runtime/claim",
            {
                "runtime_id": self.id,
                "claim_id": claim_id or uuid7(),
                "limit": limit,
                "wait_s": wait_s,
            },
        )
        assert answer.status == 200, answer.body
        return list(answer.body["tasks"])

    async def call(self, task: dict[str, Any], act: str, **fields: Any) -> tuple[int, Any]:
        """Start, complete or fail a claimed task with its lease: status and body."""
        body = {"lease_token": task["lease_token"], **fields}
        answer = await self.client("POST", f"/api/runtime/tasks/{task['id']}/{act}", body)
        return answer.status, answer.body

    async def renew(self, *held: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        """The answers for claimed tasks, in order."""
        named = [{"id": task["id"], "lease_token": task["lease_token"], **fields} for task in held]
        answer = await self.client("POST", "/api/runtime/renew", {"runtime_id": self.id, "tasks": named})
        assert answer.status == 200, answer.body
        return list(answer.body["tasks"])

    async def beat(self, **fields: Any) -> int:
        answer = await self.client("POST", "/api/runtime/heartbeat", {"runtime_id": self.id, **fields})
        return answer.status


class Shop:
    """A place with one machine and one agent bound to it."""

    def __init__(self, api: Api, place: Place, machine: Machine, agent_id: AgentId) -> None:
        self.api = api
        self.database = api.database
        self.place = place
        self.owner = place.owner
        self.machine = machine
        self.setting = Setting(
            workspace_id=place.id,
            owner_id=place.owner_id,
            agent_id=agent_id,
            runtime_id=RuntimeId(UUID(machine.id)),
        )

    async def rule(self, mode: ExecutionMode = ExecutionMode.RUN_ONLY, **fields: Any) -> AutopilotId:
        """An active rule of the owner's for the shop's agent."""
        made = await rules.make_autopilot(self.database, self.setting, execution_mode=mode, **fields)
        return made.id

    async def start(
        self, mode: ExecutionMode = ExecutionMode.RUN_ONLY, rule: AutopilotId | None = None, **fields: Any
    ) -> Started:
        """A run that has been dispatched, of a new rule unless one is given."""
        autopilot_id = rule or await self.rule(mode, **fields)
        run_id = await admit_one(self.database, autopilot_id)
        await drain(worker(self.database))
        run = await self.run(run_id)
        assert run["task_id"] is not None, run["failure_reason"]
        return Started(
            autopilot_id=autopilot_id, run_id=run_id, task_id=run["task_id"], issue_id=run["issue_id"]
        )

    async def held(self, started: Started, *, running: bool = True) -> dict[str, Any]:
        """The run's task, claimed by the machine, and running unless said otherwise."""
        (task,) = await self.machine.claim()
        assert task["id"] == str(started.task_id)
        if running:
            assert (await self.machine.call(task, "start"))[0] == 200
        return task

    async def run(self, run_id: RunId) -> asyncpg.Record:
        return await self._one("autopilot_run", run_id)

    async def task(self, task_id: TaskId) -> asyncpg.Record:
        return await self._one("agent_task", task_id)

    async def issue(self, issue_id: IssueId | None) -> asyncpg.Record:
        return await self._one("issue", issue_id)

    async def end_lease(self, task_id: TaskId) -> None:
        """Let a task's lease run out, as if time had passed."""
        await fetch(
            self.database,
            "UPDATE agent_task SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1",
            task_id,
        )

    async def _one(self, table: str, id_: object) -> asyncpg.Record:
        (found,) = await fetch(self.database, f"SELECT * FROM {table} WHERE id = $1", id_)
        return found


async def make_machine(api: Api, place: Place, name: str = "box", *, concurrency: int = 1) -> Machine:
    """A runtime registered over the protocol."""
    client = await api.program(place, TokenKind.RUNTIME)
    answer = await client("POST", "/api/runtime/register", {"name": name, "concurrency": concurrency})
    assert answer.status == 200, answer.body
    return Machine(client=client, id=answer.body["runtime_id"])


async def make_shop(api: Api, slug: str = "acme", *, concurrency: int = 1) -> Shop:
    """A place, its machine, and the owner's agent on it, shared with the workspace."""
    place = await api.place(slug)
    machine = await make_machine(api, place, concurrency=concurrency)
    agent_id, _ = await rules.make_agent(
        api.database,
        place.id,
        place.owner_id,
        visibility="workspace",
        runtime_id=RuntimeId(UUID(machine.id)),
    )
    return Shop(api, place, machine, agent_id)
