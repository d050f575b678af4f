"""A small world for integration tests: people, agents with runtimes, rules and triggers, made through the engine.

Every function takes a Database (a transaction of its own) or a connection (part of the caller's).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    RuntimeId,
    SquadId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.permissions import Role
from autopilot.domain.states import AssigneeType, ExecutionMode, TriggerKind
from autopilot.engine import rules, triggers
from autopilot.engine.secrets import Vault
from autopilot.kit.config import Secret
from autopilot.kit.ids import uuid7
from autopilot.storage import members, workspaces
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn, Database
from autopilot.storage.triggers import Trigger

SECRET_KEY = "c2VjcmV0LWtleS1mb3ItdGVzdHMtb25seS0wMDAwMDA="  # what tests give as AUTOPILOT_SECRET_KEYS
VAULT = Vault([Secret(SECRET_KEY)])


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace ready to work in: its owner, and the owner's agent, shared with all, on an online runtime."""

    workspace_id: WorkspaceId
    owner_id: UserId
    agent_id: AgentId
    runtime_id: RuntimeId


class WebhookTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook trigger with the token of its URL."""

    trigger: Trigger
    token: str

    @property
    def id(self) -> TriggerId:
        return self.trigger.id


async def make_setting(where: Database | Conn, slug: str = "acme") -> Setting:
    """A workspace, its owner, and an agent that can run."""
    async with _on(where) as conn:
        workspace_id = await make_workspace(conn, slug)
        owner_id = await make_user(conn, workspace_id, Role.OWNER, name=f"{slug}-owner")
        agent_id, runtime_id = await make_agent(conn, workspace_id, owner_id, visibility="workspace")
        return Setting(workspace_id=workspace_id, owner_id=owner_id, agent_id=agent_id, runtime_id=runtime_id)


async def make_workspace(
    where: Database | Conn, slug: str = "acme", *, policy: str = "owner_fallback"
) -> WorkspaceId:
    workspace_id = WorkspaceId(uuid7())
    async with _on(where) as conn:
        await workspaces.insert_workspace(
            conn, workspace_id=workspace_id, slug=slug, name=slug.title(), issue_prefix="AUT"
        )
        await conn.execute("UPDATE workspace SET attribution_policy = $2 WHERE id = $1", workspace_id, policy)
    return workspace_id


async def make_user(
    where: Database | Conn, workspace_id: WorkspaceId, role: Role = Role.MEMBER, *, name: str | None = None
) -> UserId:
    """A member of the workspace."""
    user_id = UserId(uuid7())
    async with _on(where) as conn:
        await members.ensure_user(
            conn, user_id=user_id, email=f"{user_id.hex}@example.test", name=name or "Mia"
        )
        await members.insert_member(conn, workspace_id, user_id, role)
    return user_id


async def remove_member(where: Database | Conn, workspace_id: WorkspaceId, user_id: UserId) -> None:
    """Let a person leave, with no more than the rows that the schema takes along."""
    async with _on(where) as conn:
        await conn.execute(
            "DELETE FROM member WHERE workspace_id = $1 AND user_id = $2", workspace_id, user_id
        )


async def make_runtime(
    where: Database | Conn, workspace_id: WorkspaceId, *, online: bool = True
) -> RuntimeId:
    """A runtime; an online one has just sent a heartbeat, one that is not has never sent any."""
    runtime_id = RuntimeId(uuid7())
    async with _on(where) as conn:
        await conn.execute(
            "INSERT INTO runtime (id, workspace_id, name) VALUES ($1, $2, $3)",
            *(runtime_id, workspace_id, f"runtime-{runtime_id.hex}"),
        )
        if online:
            await set_runtime(conn, runtime_id)
    return runtime_id


async def set_runtime(
    where: Database | Conn, runtime_id: RuntimeId, *, seen_s_ago: float = 0, usable: bool = True
) -> None:
    """Say when a runtime was last heard of, and whether its agent program can run."""
    async with _on(where) as conn:
        await conn.execute(
            """INSERT INTO runtime_heartbeat (runtime_id, seen_at, usable)
               VALUES ($1, clock_timestamp() - make_interval(secs => $2), $3)
                   ON CONFLICT (runtime_id) DO UPDATE SET seen_at = EXCLUDED.seen_at, usable = EXCLUDED.usable""",
            *(runtime_id, seen_s_ago, usable),
        )


async def make_agent(
    where: Database | Conn,
    workspace_id: WorkspaceId,
    owner_id: UserId,
    *,
    online: bool | None = True,
    visibility: str = "private",
    shared_with: tuple[UserId, ...] = (),
    runtime_id: RuntimeId | None = None,
) -> tuple[AgentId, RuntimeId]:
    """An agent on a runtime of its own (or on `runtime_id`). `online=None`: bound to none, and the id means nothing."""
    agent_id = AgentId(uuid7())
    async with _on(where) as conn:
        bound = runtime_id
        if bound is None and online is not None:
            bound = await make_runtime(conn, workspace_id, online=online)
        await conn.execute(
            "INSERT INTO agent (id, workspace_id, name, owner_id, visibility, runtime_id) VALUES ($1, $2, $3, $4, $5, $6)",
            *(agent_id, workspace_id, f"agent-{agent_id.hex}", owner_id, visibility, bound),
        )
        for user_id in shared_with:
            await conn.execute(
                "INSERT INTO agent_share (workspace_id, agent_id, user_id) VALUES ($1, $2, $3)",
                *(workspace_id, agent_id, user_id),
            )
    return agent_id, bound or RuntimeId(uuid7())


async def make_squad(
    where: Database | Conn, workspace_id: WorkspaceId, creator_id: UserId, leader_id: AgentId | None
) -> SquadId:
    squad_id = SquadId(uuid7())
    async with _on(where) as conn:
        await conn.execute(
            "INSERT INTO squad (id, workspace_id, name, leader_id, created_by) VALUES ($1, $2, $3, $4, $5)",
            *(squad_id, workspace_id, f"squad-{squad_id.hex}", leader_id, creator_id),
        )
    return squad_id


async def make_autopilot(
    where: Database | Conn, setting: Setting, *, editor: UserId | None = None, **fields: Any
) -> Autopilot:
    """An active create_issue rule of the owner's for the setting's agent; `fields` are those of `rules.NewAutopilot`."""
    given: dict[str, Any] = {
        "id": AutopilotId(uuid7()),
        "title": "Review the pull request",
        "description": "Read it and say what you think.",
        "execution_mode": ExecutionMode.CREATE_ISSUE,
        "assignee_type": AssigneeType.AGENT,
        "assignee_id": setting.agent_id,
        **fields,
    }
    async with _on(where) as conn:
        return await rules.create_autopilot(
            conn, setting.workspace_id, editor or setting.owner_id, rules.NewAutopilot(**given)
        )


async def make_schedule_trigger(
    where: Database | Conn,
    setting: Setting,
    autopilot_id: AutopilotId,
    cron: str = "* * * * *",
    *,
    editor: UserId | None = None,
    due_s_ago: float | None = None,
    **fields: Any,
) -> Trigger:
    """A schedule; `due_s_ago` moves its next_run_at into the past, as if time had passed."""
    new = triggers.NewTrigger(id=TriggerId(uuid7()), kind=TriggerKind.SCHEDULE, cron=cron, **fields)
    async with _on(where) as conn:
        trigger = await triggers.add_trigger(
            conn, VAULT, setting.workspace_id, autopilot_id, editor or setting.owner_id, new
        )
        if due_s_ago is None:
            return trigger
        due = await conn.fetchval(
            """UPDATE autopilot_trigger
                  SET next_run_at = date_trunc('minute', clock_timestamp() - make_interval(secs => $2))
                WHERE id = $1 RETURNING next_run_at""",
            *(trigger.id, due_s_ago),
        )
        return msgspec.structs.replace(trigger, next_run_at=due)


async def make_webhook_trigger(
    where: Database | Conn,
    setting: Setting,
    autopilot_id: AutopilotId,
    *,
    secret: str | None = None,
    editor: UserId | None = None,
    **fields: Any,
) -> WebhookTrigger:
    """A webhook, generic unless `provider` says otherwise, with the token of its URL."""
    new = triggers.NewTrigger(
        id=TriggerId(uuid7()), kind=TriggerKind.WEBHOOK, signing_secret=secret, **fields
    )
    async with _on(where) as conn:
        trigger = await triggers.add_trigger(
            conn, VAULT, setting.workspace_id, autopilot_id, editor or setting.owner_id, new
        )
    assert trigger.token_enc is not None
    return WebhookTrigger(trigger=trigger, token=VAULT.decrypt(trigger.token_enc))


@asynccontextmanager
async def _on(where: Database | Conn) -> AsyncIterator[Conn]:
    if isinstance(where, Database):
        async with where.transaction() as conn:
            yield conn
    else:
        yield where
