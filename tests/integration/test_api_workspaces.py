"""Workspaces and their members over REST."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.support.api import Api, Place

from autopilot.domain.permissions import Role, TokenKind


async def test_who_makes_a_workspace_owns_it_and_it_is_complete(api: Api, acme: Place) -> None:
    person = api.client(acme.owner.token)
    made = await person("POST", "/api/workspaces", {"slug": "beta", "name": "Beta", "issue_prefix": "BET"})
    assert (made.status, made.body["role"]) == (201, "owner")
    mine = await person("GET", "/api/workspaces")
    assert [w["slug"] for w in mine.body["items"]] == ["beta", "acme"]
    by_id = await api.client(acme.owner.token, made.body["id"])("GET", "/api/workspaces/current")
    assert by_id.body["issue_prefix"] == "BET"
    async with api.database.connection() as conn:
        assert await conn.fetchval(
            "SELECT count(*) FROM workspace_counter JOIN event_head USING (workspace_id) WHERE workspace_id = $1",
            UUID(made.body["id"]),
        )


@pytest.mark.parametrize(
    ("slug", "problem"),
    [
        ("acme", (409, "slug_taken", "slug")),
        ("Acme!", (422, "invalid_value", "slug")),
        ("acme\n", (422, "invalid_value", "slug")),
        ("01a22c8e-d18c-7446-a85e-e02501d52b9c", (422, "invalid_value", "slug")),
        ("x" * 64, (422, "invalid_value", "slug")),
        (7, (400, "malformed", "slug")),
    ],
)
async def test_a_slug_that_will_not_do_is_refused(
    api: Api, acme: Place, slug: object, problem: tuple[int, str, str]
) -> None:
    answer = await acme.owner("POST", "/api/workspaces", {"slug": slug, "name": "x"})
    assert answer.problem() == problem
    async with api.database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM workspace") == 1


async def test_only_owners_and_admins_change_the_workspace(api: Api, acme: Place) -> None:
    """S6.8, S5.2."""
    _, mia = await api.joined(acme, "mia")
    _, ada = await api.joined(acme, "ada", Role.ADMIN)
    change = {"attribution_policy": "block"}
    assert (await mia("PATCH", "/api/workspaces/current", change)).status == 403
    changed = await ada("PATCH", "/api/workspaces/current", change)
    assert (changed.status, changed.body["attribution_policy"], changed.body["name"]) == (
        200,
        "block",
        "Acme",
    )
    refused = await ada("PATCH", "/api/workspaces/current", {"attribution_policy": "anyone"})
    assert refused.problem() == (422, "invalid_value", "attribution_policy")


async def test_a_workspace_must_be_named_unless_the_token_is_bound(api: Api, acme: Place) -> None:
    """S13."""
    unnamed = await api.client(acme.owner.token)("GET", "/api/workspaces/current")
    assert unnamed.problem() == (400, "workspace_required", "X-Workspace")
    bound = api.client(await api.token(TokenKind.PERSONAL, acme.owner_id, acme.id))
    assert (await bound("GET", "/api/workspaces/current")).body["slug"] == "acme"
    assert (await bound("POST", "/api/workspaces", {"slug": "b", "name": "b"})).status == 403


@pytest.mark.parametrize("header", ["other", "nowhere", "Other", "é", "01a22c8e-d18c-7446-a85e-e02501d52b9c"])
async def test_a_workspace_of_others_does_not_exist(api: Api, acme: Place, header: str) -> None:
    """S6.6, for a free and for a bound token."""
    other = await api.place("other")
    for name in (header, str(other.id)):
        answer = await api.client(acme.owner.token, name)("GET", "/api/workspaces/current")
        assert answer.problem() == (404, "not_found", None)
        service = await api.token(TokenKind.SERVICE, acme.owner_id, acme.id)
        assert (await api.client(service, name)("GET", "/api/agents")).status == 404


async def test_a_member_is_added_by_address_and_once(api: Api, acme: Place) -> None:
    made = await acme.owner("POST", "/api/members", {"email": " Bob@Acme.example", "name": "Bob"})
    assert made.problem() == (422, "invalid_value", "email")
    made = await acme.owner("POST", "/api/members", {"email": "Bob@Acme.example", "name": "Bob"})
    assert (made.status, made.body["email"], made.body["role"]) == (201, "bob@acme.example", "member")
    again = await acme.owner("POST", "/api/members", {"email": "bob@acme.example", "role": "admin"})
    assert again.problem() == (409, "already_member", "email")
    other = await api.place("other")
    there = await other.owner("POST", "/api/members", {"email": "bob@acme.example", "name": "Someone"})
    assert (there.body["user_id"], there.body["name"]) == (made.body["user_id"], "Bob")
    listed = await acme.owner("GET", "/api/members")
    assert {m["email"]: m["role"] for m in listed.body["items"]} == {
        "owner@acme.example": "owner",
        "bob@acme.example": "member",
    }


async def test_only_an_owner_makes_and_unmakes_owners_and_one_stays(api: Api, acme: Place) -> None:
    """S6.8."""
    mia_id, mia = await api.joined(acme, "mia")
    _, ada = await api.joined(acme, "ada", Role.ADMIN)
    owner_path, mia_path = f"/api/members/{acme.owner_id}", f"/api/members/{mia_id}"
    assert (await mia("PATCH", mia_path, {"role": "admin"})).status == 403
    assert (await ada("PATCH", mia_path, {"role": "owner"})).status == 403
    assert (await ada("PATCH", owner_path, {"role": "member"})).status == 403
    new_owner = {"email": "x@acme.example", "role": "owner"}
    assert (await ada("POST", "/api/members", new_owner)).status == 403
    assert (await mia("POST", "/api/members", {"email": "x@acme.example"})).status == 403
    last = await acme.owner("PATCH", owner_path, {"role": "member"})
    assert last.problem() == (409, "last_owner", None)
    assert (await ada("PATCH", mia_path, {"role": "admin"})).body["role"] == "admin"
    assert (await acme.owner("PATCH", mia_path, {"role": "owner"})).body["role"] == "owner"
    assert (await acme.owner("PATCH", owner_path, {"role": "member"})).body["role"] == "member"
    assert (await acme.owner("PATCH", owner_path, {"role": "owner"})).status == 403
    assert (await mia("PATCH", mia_path, {"role": "admin"})).problem() == (409, "last_owner", None)


async def test_two_owners_who_unmake_each_other_at_once_leave_one(api: Api, acme: Place) -> None:
    """S6.8: roles change one by one."""
    second_id, second = await api.joined(acme, "second", Role.OWNER)
    answers = await asyncio.gather(
        acme.owner("PATCH", f"/api/members/{second_id}", {"role": "member"}),
        second("PATCH", f"/api/members/{acme.owner_id}", {"role": "member"}),
    )
    assert sorted(answer.status for answer in answers) in ([200, 409], [200, 403])
    async with api.database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM member WHERE role = 'owner'") == 1


async def test_an_owner_who_was_unmade_a_moment_ago_unmakes_nobody(api: Api, acme: Place) -> None:
    """S6.8: of two who unmake each other one is too late, also where a third owner remains."""
    ids_and_clients = [await api.joined(acme, name, Role.OWNER) for name in ("one", "two")]
    (one_id, one), (two_id, two) = ids_and_clients
    answers = await asyncio.gather(
        one("PATCH", f"/api/members/{two_id}", {"role": "member"}),
        two("PATCH", f"/api/members/{one_id}", {"role": "member"}),
    )
    assert sorted(answer.status for answer in answers) == [200, 403]
