"""rules-api within the test's own process: the real application on a free port, over a real database."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
from tests.support.rules import SECRET_KEY, VAULT

from autopilot.bus.connection import Bus
from autopilot.domain.ids import TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.kit.clock import SystemClock
from autopilot.kit.config import Secret
from autopilot.kit.ids import new_api_token, uuid7
from autopilot.kit.server import serve
from autopilot.rules_api.app import make_app
from autopilot.rules_api.auth import PREFIXES
from autopilot.rules_api.config import Config
from autopilot.rules_api.deps import Deps
from autopilot.storage import members, tokens, workspaces
from autopilot.storage.database import Database


class Answer(msgspec.Struct, frozen=True):
    """What came back: status, decoded JSON (None for no body) and headers."""

    status: int
    body: Any
    headers: dict[str, str]

    def problem(self) -> tuple[int, str | None, str | None]:
        """Status, code and field, to compare a refusal in one line."""
        return self.status, self.body.get("code"), self.body.get("field")


class Client(msgspec.Struct, frozen=True):
    """Calls with one token in one workspace (None: the header is not sent)."""

    session: aiohttp.ClientSession
    base: str
    token: str | None
    workspace: str | None

    async def __call__(
        self,
        method: str,
        path: str,
        json: object = msgspec.UNSET,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request; `json` is encoded, `raw` is sent as it is (as application/json)."""
        sent = dict(headers or {})
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        if self.workspace is not None:
            sent["X-Workspace"] = self.workspace
        data = raw if json is msgspec.UNSET else msgspec.json.encode(json)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        stream = io.BytesIO(data) if data is not None else None
        async with self.session.request(method, self.base + path, data=stream, headers=sent) as response:
            body = await response.read()
            return Answer(
                response.status, msgspec.json.decode(body) if body else None, dict(response.headers)
            )


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace that a test works in, with its owner."""

    id: WorkspaceId
    slug: str
    owner_id: UserId
    owner: Client


class Api:
    """The running application and ways to people it; what it makes goes straight into the database."""

    def __init__(self, deps: Deps, session: aiohttp.ClientSession, base: str) -> None:
        self.deps = deps
        self.database = deps.database
        self.base = base
        self._session = session

    def client(self, token: str | None, workspace: str | None = None) -> Client:
        return Client(self._session, self.base, token, workspace)

    async def place(self, slug: str = "acme") -> Place:
        """A workspace with an owner, `owner@<slug>.example`."""
        workspace_id = WorkspaceId(uuid7())
        async with self.database.transaction() as conn:
            await workspaces.insert_workspace(
                conn, workspace_id=workspace_id, slug=slug, name=slug.title(), issue_prefix="AUT"
            )
        owner_id, owner = await self.member(workspace_id, slug, Role.OWNER, "owner")
        return Place(id=workspace_id, slug=slug, owner_id=owner_id, owner=owner)

    async def member(
        self, workspace_id: WorkspaceId, slug: str, role: Role, name: str
    ) -> tuple[UserId, Client]:
        """A person `<name>@<slug>.example` in the workspace, and a client with their personal token."""
        async with self.database.transaction() as conn:
            user = await members.ensure_user(
                conn, user_id=UserId(uuid7()), email=f"{name}@{slug}.example", name=name
            )
            await members.ensure_member(conn, workspace_id, user.id, role)
        return user.id, self.client(await self.token(TokenKind.PERSONAL, user.id), slug)

    async def joined(self, place: Place, name: str, role: Role = Role.MEMBER) -> tuple[UserId, Client]:
        """Another member of a place."""
        return await self.member(place.id, place.slug, role, name)

    async def token(
        self,
        kind: TokenKind,
        user_id: UserId,
        workspace_id: WorkspaceId | None = None,
        *,
        days: int = 1,
    ) -> str:
        """A token's secret; `days=-1` makes one that has expired. Programs' tokens are created by `user_id`."""
        secret = new_api_token(PREFIXES[kind])
        async with self.database.transaction() as conn:
            await tokens.insert_token(
                conn,
                token_id=TokenId(uuid7()),
                kind=kind,
                name="test",
                secret=secret,
                user_id=user_id if kind is TokenKind.PERSONAL else None,
                workspace_id=workspace_id,
                created_by=user_id,
                days=days,
            )
        return secret

    async def program(self, place: Place, kind: TokenKind) -> Client:
        """A client with a service or runtime token of the place, which needs no X-Workspace."""
        return self.client(await self.token(kind, place.owner_id, place.id))

    async def runtime(self, place: Place, name: str = "box", *, seen_s_ago: int | None = None) -> str:
        """A runtime of the place by its id, last heard of `seen_s_ago` (None: never)."""
        runtime_id = uuid7()
        async with self.database.transaction() as conn:
            await conn.execute(
                "INSERT INTO runtime (id, workspace_id, name) VALUES ($1, $2, $3)", runtime_id, place.id, name
            )
            if seen_s_ago is not None:
                await conn.execute(
                    "INSERT INTO runtime_heartbeat (runtime_id, seen_at)"
                    " VALUES ($1, clock_timestamp() - make_interval(secs => $2))",
                    runtime_id,
                    seen_s_ago,
                )
        return str(runtime_id)


@asynccontextmanager
async def running_api(postgres_url: str, nats_url: str | None = None) -> AsyncIterator[Api]:
    """Start the application on a free port of the loopback interface."""
    config = Config(
        database_url=Secret(postgres_url),
        secret_keys=(Secret(SECRET_KEY),),
        api_port=0,
        ingress_url="https://hooks.example.test",
    )
    async with (
        # Patient, for a machine that has more to do: what a stranger's lock or a rush does to requests is told elsewhere.
        Database(
            postgres_url,
            name="test-api",
            max_size=4,
            acquire_timeout_s=20,
            settings={"lock_timeout": "15000"},
        ) as database,
        Bus(nats_url, name="test-api") as bus,
        aiohttp.ClientSession() as session,
    ):
        deps = Deps(database=database, bus=bus, secrets=VAULT, clock=SystemClock(), config=config)
        runner = await serve(make_app(deps), "127.0.0.1", 0, what="rules-api")
        try:
            yield Api(deps, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()


def ids(answer: Answer) -> list[UUID]:
    """The ids of a page, in order."""
    return [UUID(item["id"]) for item in answer.body["items"]]
