"""What holds for every resource: paging, bodies, other workspaces; and projects, the plainest of them."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.support.api import Api, Place, ids

from autopilot.domain.permissions import TokenKind
from autopilot.kit.ids import uuid7


async def test_a_project_is_edited_by_its_creator_and_admins(api: Api, acme: Place) -> None:
    """S6.8."""
    _, bob = await api.joined(acme, "bob")
    _, mia = await api.joined(acme, "mia")
    project = (await bob("POST", "/api/projects", {"name": "site"})).body
    path = f"/api/projects/{project['id']}"
    assert (await mia("POST", "/api/projects", {"name": "site"})).problem() == (409, "name_taken", "name")
    assert (await mia("PATCH", path, {"name": "x"})).status == 403
    assert (await mia("DELETE", path)).status == 403
    assert (await mia("GET", path)).body["name"] == "site"
    assert (await bob("PATCH", path, {})).body["name"] == "site"
    assert (await acme.owner("PATCH", path, {"name": "shop"})).body["name"] == "shop"
    assert (await bob("DELETE", path)).status == 204
    assert (await bob("GET", path)).status == 404


async def test_nothing_of_another_workspace_exists(api: Api, acme: Place) -> None:
    """S6.6: for every verb and every id."""
    other = await api.place("other")
    lead = (await other.owner("POST", "/api/agents", {"name": "lead", "visibility": "workspace"})).body["id"]
    squad = (await other.owner("POST", "/api/squads", {"name": "web", "leader_id": lead})).body["id"]
    project = (await other.owner("POST", "/api/projects", {"name": "site"})).body["id"]
    box = await api.runtime(other)
    calls: list[tuple[str, str, object]] = [
        ("GET", f"/api/members/{other.owner_id}", None),
        ("PATCH", f"/api/members/{other.owner_id}", {"role": "member"}),
        ("GET", f"/api/agents/{lead}", None),
        ("PATCH", f"/api/agents/{lead}", {"name": "mine"}),
        ("DELETE", f"/api/agents/{lead}", None),
        ("POST", f"/api/agents/{lead}/shares", {"user_id": str(acme.owner_id)}),
        ("DELETE", f"/api/agents/{lead}/shares/{other.owner_id}", None),
        ("GET", f"/api/squads/{squad}", None),
        ("PATCH", f"/api/squads/{squad}", {"name": "mine"}),
        ("DELETE", f"/api/squads/{squad}", None),
        ("GET", f"/api/projects/{project}", None),
        ("PATCH", f"/api/projects/{project}", {"name": "mine"}),
        ("DELETE", f"/api/projects/{project}", None),
        ("GET", f"/api/runtimes/{box}", None),
    ]
    for method, path, body in calls:
        for target in (path, path.replace(path.split("/")[3], "no-id-at-all")):
            answer = await (acme.owner(method, target, body) if body else acme.owner(method, target))
            assert answer.problem() == (404, "not_found", None), (method, target)
    assert (await other.owner("GET", f"/api/agents/{lead}")).body["name"] == "lead"
    assert (await other.owner("GET", f"/api/squads/{squad}")).body["archived_at"] is None
    assert (await other.owner("GET", f"/api/projects/{project}")).body["name"] == "site"


async def test_a_service_token_reads_and_writes_nothing(api: Api, acme: Place) -> None:
    """S13.6."""
    service = await api.program(acme, TokenKind.SERVICE)
    for path in ("members", "agents", "squads", "projects", "runtimes", "workspaces/current"):
        assert (await service("GET", f"/api/{path}")).status == 200
    for method, path in (("POST", "projects"), ("POST", "agents"), ("PATCH", "workspaces/current")):
        answer = await service(method, f"/api/{path}", {"name": "x"})
        assert answer.problem() == (403, "wrong_token_kind", None)
    assert (await acme.owner("GET", "/api/projects")).body["items"] == []


async def test_a_list_is_paged_newest_first_without_gap_or_repeat(api: Api, acme: Place) -> None:
    """S13."""
    made = [UUID((await acme.owner("POST", "/api/projects", {"name": f"p{n}"})).body["id"]) for n in range(5)]
    seen: list[UUID] = []
    path = "/api/projects?limit=2"
    sizes = []
    while path:
        page = await acme.owner("GET", path)
        seen += ids(page)
        sizes.append(len(page.body["items"]))
        cursor = page.body["next_cursor"]
        path = f"/api/projects?limit=2&cursor={cursor}" if cursor else ""
    assert seen == made[::-1]
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("limit=0", (422, "invalid_value", "limit")),
        ("limit=101", (422, "invalid_value", "limit")),
        ("limit=x", (400, "malformed", "limit")),
        ("limit=1&limit=2", (400, "malformed", "limit")),
        ("cursor=", (400, "bad_cursor", "cursor")),
        ("cursor=nonsense", (400, "bad_cursor", "cursor")),
        ("cursor=%C3%A9", (400, "bad_cursor", "cursor")),
        ("curser=x", (400, "malformed", "curser")),
    ],
)
async def test_a_page_asked_for_wrongly_is_refused(
    acme: Place, query: str, problem: tuple[int, str, str]
) -> None:
    assert (await acme.owner("GET", f"/api/projects?{query}")).problem() == problem


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"name": 7}', (400, "malformed", "name")),
        (b"{}", (400, "malformed", "name")),
        (b"", (400, "malformed", "name")),
        (b'{"name": null}', (400, "malformed", "name")),
        (b'{"name": "x", "nmae": "y"}', (400, "malformed", "nmae")),
        (b'{"name": "x"', (400, "malformed", None)),
        (b"[]", (400, "malformed", "body")),
        (b'{"name": "\xff"}', (400, "malformed", None)),
        (b'{"name": ""}', (422, "invalid_value", "name")),
        (b'{"name": "  "}', (422, "invalid_value", "name")),
        (b'{"name": "\\u0000"}', (422, "invalid_value", "name")),
        (b'{"name": "' + b"x" * 101 + b'"}', (422, "invalid_value", "name")),
        (b'{"name": "' + b"x" * 1024 * 1024 + b'"}', (413, "content_too_large", None)),
        (b"[" * 100_000, (400, "malformed", "body")),
    ],
)
async def test_a_bad_body_is_refused_by_the_name_of_its_field(
    acme: Place, raw: bytes, problem: tuple[int, str, str | None]
) -> None:
    """S13.2, S13.8: and nothing is made."""
    answer = await acme.owner("POST", "/api/projects", raw=raw)
    assert answer.problem() == problem
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (await acme.owner("GET", "/api/projects")).body["items"] == []


async def test_a_body_that_is_not_json_and_a_wrong_path_or_method(acme: Place) -> None:
    form = await acme.owner(
        "POST", "/api/projects", raw=b"name=x", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert form.problem() == (415, "unsupported_media_type", None)
    assert (await acme.owner("GET", "/api/nothing")).problem() == (404, "not_found", None)
    wrong = await acme.owner("PUT", "/api/projects")
    assert wrong.problem() == (405, "method_not_allowed", None)
    assert "POST" in wrong.headers["Allow"]
    extra = await acme.owner("DELETE", f"/api/projects/{uuid7()}", {"force": True})
    assert extra.problem() == (400, "malformed", "force")
