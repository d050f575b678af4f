"""Every route × everybody: who gets in, who is refused and how, and that a refusal changes nothing (S6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.api import running_api
from tests.support.digest import digest
from tests.support.everybody import CONFLICTS, Persona, Walk, make_walk

from autopilot.domain.permissions import Action, Role, TokenKind
from autopilot.rules_api.app import ROUTES

A = Action

# What S6 says of each route. A route that is not here fails the test, and so does one that needs another right.
RIGHTS: dict[str, Action] = {
    "POST /api/agents": A.AGENT_CREATE,
    "GET /api/agents": A.READ,
    "GET /api/agents/{agent_id}": A.READ,
    "PATCH /api/agents/{agent_id}": A.AGENT_EDIT,
    "DELETE /api/agents/{agent_id}": A.AGENT_EDIT,
    "POST /api/agents/{agent_id}/shares": A.AGENT_SHARE,
    "DELETE /api/agents/{agent_id}/shares/{user_id}": A.AGENT_SHARE,
    "GET /api/autopilots": A.READ,
    "POST /api/autopilots": A.AUTOPILOT_CREATE,
    "GET /api/autopilots/cron-preview": A.READ,
    "GET /api/autopilots/{autopilot_id}": A.READ,
    "PATCH /api/autopilots/{autopilot_id}": A.AUTOPILOT_WRITE,
    "DELETE /api/autopilots/{autopilot_id}": A.AUTOPILOT_WRITE,
    "POST /api/autopilots/{autopilot_id}/collaborators": A.AUTOPILOT_MANAGE_ACCESS,
    "DELETE /api/autopilots/{autopilot_id}/collaborators/{user_id}": A.AUTOPILOT_MANAGE_ACCESS,
    "GET /api/autopilots/{autopilot_id}/deliveries": A.READ,
    "GET /api/autopilots/{autopilot_id}/deliveries/{delivery_id}": A.READ,
    "POST /api/autopilots/{autopilot_id}/deliveries/{delivery_id}/replay": A.AUTOPILOT_WRITE,
    "GET /api/autopilots/{autopilot_id}/explain": A.READ,
    "POST /api/autopilots/{autopilot_id}/trigger": A.AUTOPILOT_WRITE,
    "GET /api/autopilots/{autopilot_id}/runs": A.READ,
    "POST /api/autopilots/{autopilot_id}/runs": A.AUTOPILOT_RUN,
    "GET /api/autopilots/{autopilot_id}/runs/{run_id}": A.READ,
    "GET /api/autopilots/{autopilot_id}/triggers": A.READ,
    "POST /api/autopilots/{autopilot_id}/triggers": A.AUTOPILOT_WRITE,
    "PATCH /api/autopilots/{autopilot_id}/triggers/{trigger_id}": A.AUTOPILOT_WRITE,
    "DELETE /api/autopilots/{autopilot_id}/triggers/{trigger_id}": A.AUTOPILOT_WRITE,
    "POST /api/autopilots/{autopilot_id}/triggers/{trigger_id}/rotate-url": A.AUTOPILOT_WRITE,
    "PUT /api/autopilots/{autopilot_id}/triggers/{trigger_id}/signing-secret": A.AUTOPILOT_WRITE,
    "DELETE /api/autopilots/{autopilot_id}/triggers/{trigger_id}/signing-secret": A.AUTOPILOT_WRITE,
    "GET /api/autopilots/{autopilot_id}/versions": A.READ,
    "GET /api/events": A.READ,
    "GET /api/events/stream": A.READ,
    "GET /api/inbox": A.SELF,
    "POST /api/inbox/read": A.SELF,
    "POST /api/inbox/{item_id}/read": A.SELF,
    "GET /api/issues": A.READ,
    "GET /api/issues/{issue}": A.READ,
    "PATCH /api/issues/{issue}": A.ISSUE_WRITE,
    "DELETE /api/issues/{issue}": A.ISSUE_WRITE,
    "GET /api/issues/{issue}/comments": A.READ,
    "POST /api/issues/{issue}/comments": A.ISSUE_WRITE,
    "GET /api/members": A.READ,
    "POST /api/members": A.MEMBER_MANAGE,
    "GET /api/members/{user_id}": A.READ,
    "PATCH /api/members/{user_id}": A.MEMBER_MANAGE,
    "DELETE /api/members/{user_id}": A.MEMBER_MANAGE,
    "POST /api/projects": A.PROJECT_CREATE,
    "GET /api/projects": A.READ,
    "GET /api/projects/{project_id}": A.READ,
    "PATCH /api/projects/{project_id}": A.PROJECT_EDIT,
    "DELETE /api/projects/{project_id}": A.PROJECT_EDIT,
    "POST /api/runtime/register": A.RUNTIME_SERVE,
    "POST /api/runtime/heartbeat": A.RUNTIME_SERVE,
    "POST /api/runtime/bye": A.RUNTIME_SERVE,
    "POST /api/runtime/claim": A.RUNTIME_SERVE,
    "POST /api/runtime/renew": A.RUNTIME_SERVE,
    "POST /api/runtime/tasks/{task_id}/start": A.RUNTIME_SERVE,
    "POST /api/runtime/tasks/{task_id}/output": A.RUNTIME_SERVE,
    "POST /api/runtime/tasks/{task_id}/complete": A.RUNTIME_SERVE,
    "POST /api/runtime/tasks/{task_id}/fail": A.RUNTIME_SERVE,
    "GET /api/runtimes": A.READ,
    "GET /api/runtimes/{runtime_id}": A.READ,
    "PATCH /api/runtimes/{runtime_id}": A.RUNTIME_EDIT,
    "DELETE /api/runtimes/{runtime_id}": A.RUNTIME_EDIT,
    "GET /api/scheduler/executions": A.AUTOPILOT_WRITE,
    "POST /api/squads": A.SQUAD_CREATE,
    "GET /api/squads": A.READ,
    "GET /api/squads/{squad_id}": A.READ,
    "PATCH /api/squads/{squad_id}": A.SQUAD_EDIT,
    "DELETE /api/squads/{squad_id}": A.SQUAD_EDIT,
    "GET /api/tasks": A.READ,
    "GET /api/tasks/{task_id}": A.READ,
    "GET /api/tasks/{task_id}/output": A.READ,
    "POST /api/tasks/{task_id}/cancel": A.TASK_CANCEL,
    "POST /api/tokens": A.SELF,
    "GET /api/tokens": A.SELF,
    "DELETE /api/tokens/{token_id}": A.SELF,
    "POST /api/workspaces": A.SELF,
    "GET /api/workspaces": A.SELF,
    "GET /api/workspaces/current": A.READ,
    "PATCH /api/workspaces/current": A.WORKSPACE_EDIT,
}

# Rights that depend on what is asked of a route.
ASKED: list[tuple[str, Callable[[Walk], object], Action]] = [
    (
        "PATCH /api/autopilots/{autopilot_id}",
        lambda walk: {"creator_id": walk.ids["user_id"]},
        A.AUTOPILOT_HAND_OVER,
    ),
    ("PATCH /api/agents/{agent_id}", lambda walk: {"visibility": "private"}, A.AGENT_SHARE),
    ("POST /api/tokens", lambda walk: {"name": "ci", "kind": "service"}, A.WORKSPACE_TOKEN_MANAGE),
    ("POST /api/tokens", lambda walk: {"name": "box", "kind": "runtime"}, A.WORKSPACE_TOKEN_MANAGE),
    (
        "POST /api/members",
        lambda walk: {"email": f"{walk.new_name()}@acme.example".replace(" ", "-"), "role": "owner"},
        A.MEMBER_MAKE_OWNER,
    ),
    ("PATCH /api/members/{user_id}", lambda walk: {"role": "owner"}, A.MEMBER_MAKE_OWNER),
]


@pytest.fixture
async def walk(postgres_url: str) -> AsyncIterator[Walk]:
    async with running_api(postgres_url) as api:
        yield await make_walk(api)


def test_every_right_is_needed_by_something() -> None:
    assert set(RIGHTS.values()) | {right for _, _, right in ASKED} == set(Action)


def test_every_route_needs_the_right_that_stands_in_the_table() -> None:
    """S6.1, S6.2, S6.3, S6.8."""
    assert {f"{route.method} {route.path}": route.right for route in ROUTES} == RIGHTS


async def test_whoever_may_not_is_refused_as_s6_says_and_nothing_changes(walk: Walk) -> None:
    """S6.6, S6.8, S13.6, AT7: every route × owner, admin, creator, collaborator, member, outsider, programs, dead tokens, none."""
    before = await digest(walk.shop.database)
    wrong: list[str] = []
    for route, right in RIGHTS.items():
        refused = [(persona, why) for persona in walk.personas if (why := persona.refusal(right)) is not None]
        answers = await asyncio.gather(
            *(walk.call(persona, *route.split(" "), fresh=False) for persona, _ in refused)
        )
        for (persona, why), answer in zip(refused, answers, strict=True):
            if answer.problem()[:2] != why:
                wrong.append(f"{route} by {persona.name}: {answer.problem()} instead of {why}")
    assert wrong == []
    assert await digest(walk.shop.database) == before


async def test_what_is_in_another_workspace_does_not_exist(walk: Walk) -> None:
    """S6.6: for every verb and every id, also for an owner and a machine of their own workspace."""
    far = await walk.shop.api.place("far")
    owner = Persona(name="far owner", client=far.owner, role=Role.OWNER)
    machine = Persona(
        name="far machine", client=await walk.shop.api.program(far, TokenKind.RUNTIME), kind=TokenKind.RUNTIME
    )
    before = await digest(walk.shop.database)
    wrong: list[str] = []
    for route, right in RIGHTS.items():
        if "{" in route:
            asking = machine if right is A.RUNTIME_SERVE else owner
            answer = await walk.call(asking, *route.split(" "), fresh=False)
            if answer.problem()[:2] != (404, "not_found"):
                wrong.append(f"{route}: {answer.problem()}")
    assert wrong == []
    assert await digest(walk.shop.database) == before


async def test_whoever_may_is_let_through(walk: Walk) -> None:
    """S6.1, S6.2, S6.3, S6.8, S13.6."""
    wrong: list[str] = []
    for route, right in RIGHTS.items():
        if route == "GET /api/events/stream":
            continue  # it never ends; test_api_events reads it
        for persona in walk.personas:
            if persona.refusal(right) is None:
                answer = await walk.call(persona, *route.split(" "), fresh=True)
                if answer.status >= 300 and not (answer.status == 409 and route in CONFLICTS):
                    wrong.append(f"{route} by {persona.name}: {answer.problem()}")
    assert wrong == []


async def test_what_is_asked_of_a_route_may_need_a_right_of_its_own(walk: Walk) -> None:
    """S5.8, S6.8: handing over, sharing, tokens of programs, owners."""
    before = await digest(walk.shop.database)
    wrong: list[str] = []
    for route, body, right in ASKED:
        for persona in walk.personas:
            if (why := persona.refusal(right)) is not None:
                answer = await walk.call(persona, *route.split(" "), fresh=False, body=body)
                if answer.problem()[:2] != why:
                    wrong.append(f"{right} by {persona.name}: {answer.problem()} instead of {why}")
    assert wrong == []
    assert await digest(walk.shop.database) == before
    for route, body, right in ASKED:
        allowed = next(persona for persona in walk.personas if persona.refusal(right) is None)
        answer = await walk.call(allowed, *route.split(" "), fresh=False, body=body)
        assert answer.status < 300, (right, answer.body)
