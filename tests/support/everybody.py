"""Everybody who may call the API, one of everything to call about, and a request for each route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec
from tests.support.api import Answer, Api, Client
from tests.support.dispatching import receive
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import TriggerId, UserId
from autopilot.domain.permissions import Action, Role, TokenKind, may, tokens_for
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import uuid7


class Persona(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who calls: with what token, and how they stand to what the walk calls about."""

    name: str
    client: Client
    kind: TokenKind | None = TokenKind.PERSONAL
    role: Role | None = None
    is_creator: bool = False
    is_collaborator: bool = False

    def refusal(self, right: Action) -> tuple[int, str] | None:
        """How S6 refuses them the right; None: it does not."""
        if self.kind is None:
            return 401, "unauthorized"
        if self.kind not in tokens_for(right):
            return 403, "wrong_token_kind"
        if self.kind is not TokenKind.PERSONAL:
            return None
        if self.role is None:
            return 404, "not_found"
        if may(right, self.role, is_creator=self.is_creator, is_collaborator=self.is_collaborator):
            return None
        return 403, "forbidden"


class Walk:
    """One of everything, belonging to the creator, and everybody who will ask for it."""

    def __init__(self, shop: Shop, personas: list[Persona], ids: dict[str, str]) -> None:
        self.shop = shop
        self.personas = personas
        self.ids = ids
        self.creator = next(persona for persona in personas if persona.name == "creator").client
        self._made = 0

    def new_name(self) -> str:
        self._made += 1
        return f"thing {self._made}"

    async def call(
        self,
        persona: Persona,
        method: str,
        path: str,
        *,
        fresh: bool,
        body: Callable[[Walk], object] | None = None,
    ) -> Answer:
        """The request that S6 judges; for somebody who may, about a thing that is still there (`fresh`)."""
        route = f"{method} {path}"
        ids = dict(self.ids)
        if fresh and (make := MADE_ANEW.get(route)) is not None:
            name, id_ = await make(self, persona)
            ids[name] = id_
        told = body or BODIES.get(route)
        return await persona.client(
            method,
            path.format(**ids) + QUERIES.get(route, "").format(**ids),
            told(self) if told else msgspec.UNSET,
        )


BODIES: dict[str, Callable[[Walk], object]] = {
    "POST /api/agents": lambda walk: {"name": walk.new_name()},
    "PATCH /api/agents/{agent_id}": lambda walk: {"name": walk.new_name()},
    "POST /api/agents/{agent_id}/shares": lambda walk: {"user_id": walk.ids["user_id"]},
    "POST /api/autopilots": lambda walk: {
        "title": "x",
        "description": "x",
        "execution_mode": "run_only",
        "status": "paused",
    },
    "PATCH /api/autopilots/{autopilot_id}": lambda walk: {"title": walk.new_name()},
    "POST /api/autopilots/{autopilot_id}/collaborators": lambda walk: {"user_id": walk.ids["user_id"]},
    "POST /api/autopilots/{autopilot_id}/triggers": lambda walk: {"kind": "webhook"},
    "PATCH /api/autopilots/{autopilot_id}/triggers/{trigger_id}": lambda walk: {"label": walk.new_name()},
    "PUT /api/autopilots/{autopilot_id}/triggers/{trigger_id}/signing-secret": lambda walk: {
        "secret": f"a secret of a {walk.new_name()}"
    },
    "POST /api/autopilots/{autopilot_id}/runs": lambda walk: {"event": "asked"},
    "PATCH /api/issues/{issue}": lambda walk: {"title": walk.new_name()},
    "POST /api/issues/{issue}/comments": lambda walk: {"body": "seen"},
    "POST /api/members": lambda walk: {"email": f"{walk.new_name()}@acme.example".replace(" ", "-")},
    "PATCH /api/members/{user_id}": lambda walk: {"role": "member"},
    "POST /api/projects": lambda walk: {"name": walk.new_name()},
    "PATCH /api/projects/{project_id}": lambda walk: {"name": walk.new_name()},
    "PATCH /api/runtimes/{runtime_id}": lambda walk: {"name": walk.new_name()},
    "POST /api/squads": lambda walk: {"name": walk.new_name(), "leader_id": walk.ids["agent_id"]},
    "PATCH /api/squads/{squad_id}": lambda walk: {"name": walk.new_name()},
    "POST /api/tokens": lambda walk: {"name": "one more"},
    "POST /api/workspaces": lambda walk: {"slug": walk.new_name().replace(" ", "-"), "name": "New"},
    "PATCH /api/workspaces/current": lambda walk: {"name": walk.new_name()},
    "POST /api/runtime/register": lambda walk: {"name": "box"},
    "POST /api/runtime/heartbeat": lambda walk: {"runtime_id": walk.ids["runtime_id"]},
    "POST /api/runtime/bye": lambda walk: {"runtime_id": walk.ids["runtime_id"]},
    "POST /api/inbox/read": lambda walk: {"until": str(uuid7())},
    "POST /api/runtime/claim": lambda walk: {
        "runtime_id": walk.ids["runtime_id"],
        "claim_id": str(uuid7()),
        "wait_s": 0,
    },
    "POST /api/runtime/renew": lambda walk: {"runtime_id": walk.ids["runtime_id"], "tasks": []},
    "POST /api/runtime/tasks/{task_id}/start": lambda walk: {"lease_token": str(uuid7())},
    "POST /api/runtime/tasks/{task_id}/output": lambda walk: {
        "lease_token": str(uuid7()),
        "text": "x",
        "place": 0,
    },
    "POST /api/runtime/tasks/{task_id}/complete": lambda walk: {"lease_token": str(uuid7())},
    "POST /api/runtime/tasks/{task_id}/fail": lambda walk: {"lease_token": str(uuid7())},
}
QUERIES = {
    "GET /api/autopilots/cron-preview": "?expr=0+9+*+*+*",
    "GET /api/scheduler/executions": "?scope={trigger_id}",
    "POST /api/autopilots/{autopilot_id}/trigger": "?wait=0",
    "POST /api/autopilots/{autopilot_id}/runs": "?wait=0",
}
# Allowed, and refused for another reason than a right: the lease is none of theirs.
CONFLICTS = {f"POST /api/runtime/tasks/{{task_id}}/{act}" for act in ("start", "output", "complete", "fail")}

Make = Callable[[Walk, Persona], Awaitable[tuple[str, str]]]


def by_creator(name: str, path: str, body: Callable[[Walk], object]) -> Make:
    async def make(walk: Walk, _persona: Persona) -> tuple[str, str]:
        answer = await walk.creator("POST", path.format(**walk.ids), body(walk))
        return name, str(answer.body["id"])

    return make


async def an_issue(walk: Walk, _persona: Persona) -> tuple[str, str]:
    return "issue", str((await walk.shop.start(ExecutionMode.CREATE_ISSUE)).issue_id)


async def a_token(_walk: Walk, persona: Persona) -> tuple[str, str]:
    answer = await persona.client("POST", "/api/tokens", {"name": "short-lived"})
    return "token_id", str(answer.body["id"])


async def an_inbox_item(walk: Walk, persona: Persona) -> tuple[str, str]:
    item_id = uuid7()
    async with walk.shop.database.transaction() as conn:
        await conn.execute(
            """INSERT INTO inbox_item (id, workspace_id, user_id, kind, title)
               SELECT $1, $2, u.id, 'autopilot_paused', 'told' FROM app_user u WHERE u.email = $3""",
            *(item_id, walk.shop.place.id, f"{persona.name}@acme.example"),
        )
    return "item_id", str(item_id)


async def a_member(walk: Walk, _persona: Persona) -> tuple[str, str]:
    user_id, _ = await walk.shop.api.joined(walk.shop.place, walk.new_name().replace(" ", "-"))
    return "user_id", str(user_id)


async def a_runtime(walk: Walk, _persona: Persona) -> tuple[str, str]:
    runtime_id = await walk.shop.api.runtime(walk.shop.place, walk.new_name())
    async with walk.shop.database.transaction() as conn:
        await conn.execute(
            "UPDATE runtime SET registered_by = (SELECT id FROM app_user WHERE email = 'creator@acme.example') WHERE id = $1",
            runtime_id,
        )
    return "runtime_id", runtime_id


_AGENT = by_creator(
    "agent_id", "/api/agents", lambda walk: {"name": walk.new_name(), "visibility": "workspace"}
)
_RULE = by_creator(
    "autopilot_id",
    "/api/autopilots",
    lambda walk: {"title": "x", "description": "x", "execution_mode": "run_only", "status": "paused"},
)


async def a_shared_rule(walk: Walk, persona: Persona) -> tuple[str, str]:
    """A rule to be archived, with its collaborator."""
    made = await _RULE(walk, persona)
    collaborator = {"user_id": walk.ids["collaborator"]}
    await walk.creator("POST", f"/api/autopilots/{made[1]}/collaborators", collaborator)
    return made


MADE_ANEW: dict[str, Make] = {
    "DELETE /api/agents/{agent_id}": _AGENT,
    "DELETE /api/autopilots/{autopilot_id}": a_shared_rule,
    "DELETE /api/autopilots/{autopilot_id}/triggers/{trigger_id}": by_creator(
        "trigger_id", "/api/autopilots/{autopilot_id}/triggers", lambda walk: {"kind": "webhook"}
    ),
    "DELETE /api/issues/{issue}": an_issue,
    "DELETE /api/members/{user_id}": a_member,
    "DELETE /api/projects/{project_id}": by_creator(
        "project_id", "/api/projects", lambda walk: {"name": walk.new_name()}
    ),
    "DELETE /api/squads/{squad_id}": by_creator(
        "squad_id", "/api/squads", lambda walk: {"name": walk.new_name(), "leader_id": walk.ids["agent_id"]}
    ),
    "PATCH /api/runtimes/{runtime_id}": a_runtime,
    "DELETE /api/runtimes/{runtime_id}": a_runtime,
    "DELETE /api/tokens/{token_id}": a_token,
    "POST /api/inbox/{item_id}/read": an_inbox_item,
}


async def make_walk(api: Api) -> Walk:
    shop = await make_shop(api)
    other = await api.place("other")
    _, admin = await api.joined(shop.place, "admin", Role.ADMIN)
    creator_id, creator = await api.joined(shop.place, "creator")
    collaborator_id, collaborator = await api.joined(shop.place, "collaborator")
    mia_id, member = await api.joined(shop.place, "member")
    sam_id, _ = await api.joined(shop.place, "somebody")
    revoked = (await member("POST", "/api/tokens", {"name": "lost"})).body
    assert (await member("DELETE", f"/api/tokens/{revoked['id']}")).status == 204
    slug = shop.place.slug
    personas = [
        Persona(name="owner", client=shop.owner, role=Role.OWNER),
        Persona(name="admin", client=admin, role=Role.ADMIN),
        Persona(name="creator", client=creator, role=Role.MEMBER, is_creator=True),
        Persona(name="collaborator", client=collaborator, role=Role.MEMBER, is_collaborator=True),
        Persona(name="member", client=member, role=Role.MEMBER),
        Persona(name="outsider", client=api.client(other.owner.token, slug)),
        Persona(
            name="runtime", client=await api.program(shop.place, TokenKind.RUNTIME), kind=TokenKind.RUNTIME
        ),
        Persona(
            name="service", client=await api.program(shop.place, TokenKind.SERVICE), kind=TokenKind.SERVICE
        ),
        Persona(
            name="expired",
            client=api.client(await api.token(TokenKind.PERSONAL, mia_id, days=-1), slug),
            kind=None,
        ),
        Persona(name="revoked", client=api.client(revoked["token"], slug), kind=None),
        Persona(name="none", client=api.client(None, slug), kind=None),
    ]
    ids = await make_things(shop, creator, creator_id, collaborator_id)
    return Walk(shop, personas, ids | {"user_id": str(sam_id), "collaborator": str(collaborator_id)})


async def make_things(
    shop: Shop, creator: Client, creator_id: UserId, collaborator_id: UserId
) -> dict[str, str]:
    async def made(path: str, body: object) -> str:
        answer = await creator("POST", path, body)
        assert answer.status == 201, answer.body
        return str(answer.body["id"])

    spare = await shop.api.runtime(shop.place, "spare")
    async with shop.database.transaction() as conn:
        await conn.execute("UPDATE runtime SET registered_by = $1", creator_id)
    agent_id = await made("/api/agents", {"name": "lead", "visibility": "workspace", "runtime_id": spare})
    rule = await made(
        "/api/autopilots",
        {"title": "x", "description": "x", "execution_mode": "run_only", "assignee_id": agent_id},
    )
    await creator("POST", f"/api/autopilots/{rule}/collaborators", {"user_id": str(collaborator_id)})
    trigger_id = await made(f"/api/autopilots/{rule}/triggers", {"kind": "webhook"})
    run_id, delivery_id = await receive(shop.database, TriggerId(UUID(trigger_id)), b"{}")
    started = await shop.start(ExecutionMode.CREATE_ISSUE)
    return {
        "agent_id": agent_id,
        "autopilot_id": rule,
        "trigger_id": trigger_id,
        "delivery_id": str(delivery_id),
        "run_id": str(run_id),
        "issue": str(started.issue_id),
        "task_id": str(started.task_id),
        "runtime_id": shop.machine.id,
        "squad_id": await made("/api/squads", {"name": "web", "leader_id": agent_id}),
        "project_id": await made("/api/projects", {"name": "site"}),
        "token_id": str(uuid7()),
        "item_id": str(uuid7()),
    }
