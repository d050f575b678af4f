"""The API against its own document: schemathesis sends examples, edges, nonsense and chains of calls (S13).

AUTOPILOT_TEST_DEPTH says how many inputs each operation gets beside the systematic ones, AUTOPILOT_TEST_SEED which: a night's
search is `AUTOPILOT_TEST_DEPTH=100 AUTOPILOT_TEST_SEED=$RANDOM pytest tests/integration/test_api_schemathesis.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, StopReason, events, from_schema
from schemathesis.engine.run import PhaseName
from tests.support.api import Client
from tests.support.api_thread import ApiThread, api_in_thread
from tests.support.dispatching import fetch
from tests.support.work import Shop, make_shop

from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import ExecutionMode
from autopilot.rules_api.app import ROUTES
from autopilot.rules_api.openapi import document
from autopilot.rules_api.waiting import Waiter

DEPTH = int(os.environ.get("AUTOPILOT_TEST_DEPTH", "1"))
SEED = int(os.environ.get("AUTOPILOT_TEST_SEED", "1"))
TESTED = (PhaseName.EXAMPLES, PhaseName.COVERAGE, PhaseName.FUZZING, PhaseName.STATEFUL_TESTING)
# What a value that the document allows may be answered with; 422 is a refusal by a rule that no schema can say.
ACCEPTED = ["2xx", "401", "403", "404", "409", "422"]
# Two fields that exclude each other, an expression that is malformed by S8.6, a cursor whose place is gone.
OR_400 = [
    "/api/autopilots/{autopilot_id}/runs",
    "/api/autopilots/{autopilot_id}/deliveries",
    "/api/autopilots/cron-preview",
    "/api/scheduler/executions",
]


class World:
    """A workspace with one of everything, by the names of the parameters that ask for it."""

    def __init__(self, shop: Shop, runtime_token: str, known: dict[str, list[str]], own: set[str]) -> None:
        self.shop = shop
        self.runtime_token = runtime_token
        self.known = known
        self.own = own  # the caller and their tokens, whose loss would end the test


async def make_world(shop: Shop) -> World:
    owner = shop.owner
    issue, bare = await shop.start(ExecutionMode.CREATE_ISSUE), await shop.start()
    rule = f"/api/autopilots/{issue.autopilot_id}"
    triggers = [
        await made(owner, f"{rule}/triggers", {"kind": "schedule", "cron": "0 9 * * *"}),
        await made(owner, f"{rule}/triggers", {"kind": "webhook", "provider": "github"}),
    ]
    agent = await made(owner, "/api/agents", {"name": "spare"})
    mia_id, _ = await shop.api.joined(shop.place, "mia")
    runtime = await shop.api.program(shop.place, TokenKind.RUNTIME)
    assert runtime.token is not None
    known = {
        "autopilot_id": [str(issue.autopilot_id), str(bare.autopilot_id)],
        "trigger_id": triggers,
        "run_id": [str(issue.run_id)],
        "task_id": [str(issue.task_id), str(bare.task_id)],
        "issue": ["AUT-1", str(issue.issue_id)],
        "agent_id": [agent, str(shop.setting.agent_id)],
        "squad_id": [await made(owner, "/api/squads", {"name": "web", "leader_id": agent})],
        "project_id": [await made(owner, "/api/projects", {"name": "site"})],
        "token_id": [await made(owner, "/api/tokens", {"name": "ci", "kind": "service"})],
        "runtime_id": [shop.machine.id],
        "user_id": [str(mia_id)],
    }
    tokens = await fetch(shop.database, "SELECT id FROM api_token WHERE name = 'test'")
    own = {str(shop.place.owner_id), *(str(token["id"]) for token in tokens)}
    return World(shop, runtime.token, known, own)


async def made(client: Client, path: str, body: dict[str, Any]) -> str:
    answer = await client("POST", path, body)
    assert answer.status == 201, answer.body
    return str(answer.body["id"])


@pytest.fixture
def served(postgres_url: str) -> Iterator[ApiThread]:
    # Client and server take turns with each request, and the interpreter is to let them.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        with api_in_thread(postgres_url) as thread:
            yield thread
    finally:
        sys.setswitchinterval(interval)


def config(served: ApiThread, world: World) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "base-url": served.base,
            "seed": SEED,
            "suppress-health-check": ["too_slow"],  # which tells of the machine
            "headers": {"Authorization": f"Bearer {world.shop.owner.token}"},
            "dictionaries": {name: {"values": values} for name, values in world.known.items()},
            "parameters": {
                "X-Workspace": world.shop.place.slug,
                **{
                    f"{place}.{name}": {"dictionary": name, "probability": 0.8}
                    for name in world.known
                    for place in ("path", "body")
                },
            },
            "request-timeout": 30,
            "generation": {"max-examples": DEPTH, "no-shrink": True, "database": "none"},
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
            "phases": {
                "coverage": {"unexpected-methods": []},
                "stateful": {"max-steps": 6, "generation": {"max-examples": 4 + 2 * DEPTH}},
            },
            "operations": [
                {
                    "include-path-regex": "^/api/runtime/",
                    "headers": {"Authorization": f"Bearer {world.runtime_token}"},
                },
                {
                    "include-path": OR_400,
                    "checks": {"positive_data_acceptance": {"expected-statuses": [*ACCEPTED, "400"]}},
                },
                {"include-path": "/api/events/stream", "enabled": False},  # it never ends
                {  # lists and single things read alike: what is systematic is tried on those of rules
                    "include-method": "GET",
                    "include-path-regex": "^/api/(agents|inbox|issues|members|projects|runtimes|squads|tokens|workspaces)",
                    "phases": {"coverage": {"enabled": False}},
                },
            ],
        }
    )


@pytest.mark.timeout(300 + 60 * DEPTH)
def test_the_api_answers_as_its_document_says(
    served: ApiThread, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """S13, S13.2: no 5xx, no answer that is not in the document, nothing accepted that it forbids."""

    async def at_once(_self: Waiter, _deadline: float) -> bool:
        return False

    async def prepare(api: Any) -> World:
        return await make_world(await make_shop(api))

    monkeypatch.setattr(Waiter, "news", at_once)
    world = served.do(prepare)
    schema = schemathesis.openapi.from_dict(document(ROUTES), config=config(served, world))

    @schema.hook
    def map_body(_context: Any, body: Any) -> Any:
        return without_fractions(body)

    def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
        for name, value in case.path_parameters.items():
            if case.method in ("PATCH", "DELETE") and value in world.own:
                case.path_parameters[name] = str(uuid4())

    schemathesis.hook(before_call)
    request.addfinalizer(lambda: schemathesis.hooks.unregister(before_call))

    faults: list[str] = []
    reached: dict[PhaseName, Status] = {}
    answered: set[str] = set()
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                faults += failures_of(event)
                answered |= {event.recorder.label} if succeeded(event) else set()
            case events.NonFatalError() | events.FatalError():
                faults.append(repr(event))
            case events.PhaseFinished():
                reached[event.phase.name] = event.status
            case events.EngineFinished():
                assert event.stop_reason is StopReason.COMPLETED
            case _:
                pass
    assert not faults, "\n\n".join(faults)
    assert [phase for phase in TESTED if reached.get(phase) is not Status.SUCCESS] == []
    operations = {f"{route.method} {route.path}" for route in ROUTES}
    assert len(answered) > 0.8 * len(operations), operations - answered  # it gets further than refusals


def succeeded(event: events.ScenarioFinished) -> bool:
    """Whether the operation did what it is for at least once."""
    answers = [exchange.response for exchange in event.recorder.interactions.values()]
    return any(answer is not None and answer.status_code < 300 for answer in answers)


def failures_of(event: events.ScenarioFinished) -> list[str]:
    """Each failed check with the request and the answer that show it."""
    found: list[str] = []
    for case_id, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is None:
                continue
            exchange = event.recorder.interactions[case_id]
            answer = exchange.response
            shown = "nothing" if answer is None else f"{answer.status_code} {answer.content[:500]!r}"
            asked = exchange.request
            found.append(
                f"{event.recorder.label}: {check.failure_info.failure.title}\n"
                f"  {asked.method} {asked.uri} {asked.body!r}\n  -> {shown}"
            )
    return found


def without_fractions(value: Any) -> Any:
    """JSON Schema takes 5.0 for an integer; this API does not (docs/api.md)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: without_fractions(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_fractions(item) for item in value]
    return value
