"""Two editors of an agent, a squad, a project, a runtime or a workspace: the version that one saw must still stand (S13.2)."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.api import Api, Place

KINDS = ("agents", "squads", "projects", "runtimes", "workspaces")


async def make(api: Api, place: Place, kind: str) -> str:
    """The path of a new one of the kind, at version 1."""
    if kind == "workspaces":
        return "/api/workspaces/current"
    if kind == "runtimes":
        return f"/api/runtimes/{await api.runtime(place)}"
    body: dict[str, object] = {"name": "first"}
    if kind == "squads":
        body["leader_id"] = (await place.owner("POST", "/api/agents", {"name": "lead"})).body["id"]
    made = (await place.owner("POST", f"/api/{kind}", body)).body
    return f"/api/{kind}/{made['id']}"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_edit_of_what_somebody_else_has_edited_meanwhile_is_a_conflict(
    api: Api, acme: Place, kind: str
) -> None:
    path = await make(api, acme, kind)
    seen = await acme.owner("GET", path)
    assert (seen.body["version"], seen.headers["Etag"]) == (1, '"1"')
    first = await acme.owner("PATCH", path, {"name": "One"}, headers={"If-Match": seen.headers["Etag"]})
    assert (first.status, first.body["version"], first.headers["Etag"]) == (200, 2, '"2"')
    late = await acme.owner("PATCH", path, {"name": "Two"}, headers={"If-Match": '"1"'})
    assert late.problem() == (409, "edit_conflict", None)
    late = await acme.owner("PATCH", path, {"name": "Two", "version": 1})
    assert late.problem() == (409, "edit_conflict", None)
    odd = await acme.owner("PATCH", path, {"name": "Two"}, headers={"If-Match": '"x"'})
    assert odd.problem() == (400, "malformed", "If-Match")
    same = await acme.owner("PATCH", path, {"name": "One", "version": 2})
    assert (same.status, same.body["version"]) == (200, 2)
    assert (await acme.owner("PATCH", path, {"name": "Three"})).body["version"] == 3
    assert (await acme.owner("GET", path)).body["name"] == "Three"


@pytest.mark.parametrize("kind", KINDS)
async def test_of_two_edits_at_once_of_one_version_one_is_made(api: Api, acme: Place, kind: str) -> None:
    path = await make(api, acme, kind)
    edits = [acme.owner("PATCH", path, {"name": name, "version": 1}) for name in ("One", "Two")]
    answers = await asyncio.gather(*edits)
    assert sorted(answer.status for answer in answers) == [200, 409]
    [kept] = [answer.body for answer in answers if answer.status == 200]
    assert (await acme.owner("GET", path)).body == kept


@pytest.mark.parametrize("kind", KINDS[:-1])
async def test_what_was_edited_meanwhile_is_not_put_away(api: Api, acme: Place, kind: str) -> None:
    path = await make(api, acme, kind)
    assert (await acme.owner("PATCH", path, {"name": "One"})).status == 200
    late = await acme.owner("DELETE", path, headers={"If-Match": '"1"'})
    assert late.problem() == (409, "edit_conflict", None)
    assert (await acme.owner("GET", path)).body["name"] == "One"
    assert (await acme.owner("DELETE", path, headers={"If-Match": '"2"'})).status == 204


async def test_a_deleted_runtime_is_an_edit_of_the_agents_that_were_bound_to_it(
    api: Api, acme: Place
) -> None:
    """S11.5."""
    box = await api.runtime(acme)
    agent = (await acme.owner("POST", "/api/agents", {"name": "coder", "runtime_id": box})).body
    assert (await acme.owner("DELETE", f"/api/runtimes/{box}")).status == 204
    path = f"/api/agents/{agent['id']}"
    late = await acme.owner("PATCH", path, {"name": "builder", "version": agent["version"]})
    assert late.problem() == (409, "edit_conflict", None)
    now = (await acme.owner("GET", path)).body
    assert (now["name"], now["runtime_id"], now["version"]) == ("coder", None, 2)
