"""Autopilots over REST: make, see, edit, share, retire; every refusal names its field and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules as world
from tests.support.api import Api, Place, ids, running_api

from autopilot.domain.ids import AgentId, AutopilotId, RuntimeId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.kit.ids import uuid7


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[Api]:
    async with running_api(postgres_url) as api:
        yield api


@pytest.fixture
async def agent(api: Api, acme: Place) -> str:
    agent_id, _ = await world.make_agent(api.database, acme.id, acme.owner_id, visibility="workspace")
    return str(agent_id)


def new(agent: str, **fields: Any) -> dict[str, Any]:
    return {
        "title": "Review pull requests",
        "description": "Read it and say what you think.",
        "execution_mode": "create_issue",
        "assignee_type": "agent",
        "assignee_id": agent,
        **fields,
    }


async def make(acme: Place, agent: str, **fields: Any) -> dict[str, Any]:
    answer = await acme.owner("POST", "/api/autopilots", new(agent, **fields))
    assert answer.status == 201, answer.body
    made: dict[str, Any] = answer.body
    return made


async def versions(acme: Place, autopilot: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await acme.owner("GET", f"/api/autopilots/{autopilot['id']}/versions?limit=100")
    found: list[dict[str, Any]] = answer.body["items"]
    return found


async def test_a_rule_is_made_and_seen_as_it_is(api: Api, acme: Place, agent: str) -> None:
    """S13.2, S6.4: what comes back on creation is what every later look shows."""
    mia, _ = await api.joined(acme, "mia")
    made = await make(acme, agent, issue_title_template="Daily {{ date }}", subscribers=[str(mia)])
    seen = await acme.owner("GET", f"/api/autopilots/{made['id']}")
    assert seen.body == made
    assert seen.headers["Etag"] == '"1"'
    assert (
        made
        | {
            "status": "active",
            "version": 1,
            "rule_version": 1,
            "creator_id": str(acme.owner_id),
            "rule_owner_id": str(acme.owner_id),
            "issue_title_template": "Daily {{ date }}",
            "subscribers": [str(mia)],
            "collaborators": [],
            "triggers": [],
            "trigger_kinds": [],
            "can_write": True,
            "can_manage_access": True,
            "next_run_at": None,
            "last_run_at": None,
            "overlap_policy": "allow",
        }
        == made
    )
    (first,) = await versions(acme, made)
    assert (first["version"], first["change"], first["published_by"]) == (1, "create", str(acme.owner_id))
    assert first["rule"]["issue_title_template"] == "Daily {{ date }}"


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"title": "  "}, 422, "title"),
        ({"title": "x" * 201}, 422, "title"),
        ({"title": "two\nlines"}, 422, "title"),
        ({"title": 5}, 400, "title"),
        ({"title": None}, 400, "title"),
        ({"description": "x" * 65_537}, 422, "description"),
        ({"execution_mode": "create-issue"}, 422, "execution_mode"),
        ({"issue_title_template": "{{branch}}"}, 422, "issue_title_template"),
        ({"issue_title_template": "x" * 201}, 422, "issue_title_template"),
        ({"overlap_policy": "sometimes"}, 422, "overlap_policy"),
        ({"status": "archived"}, 422, "status"),
        ({"assignee_id": str(uuid7())}, 422, "assignee_id"),
        ({"assignee_id": None, "assignee_type": None}, 422, "assignee_id"),
        ({"assignee_id": "an agent"}, 400, "assignee_id"),
        ({"assignee_type": "robot"}, 422, "assignee_type"),
        ({"project_id": str(uuid7())}, 422, "project_id"),
        ({"subscribers": [str(uuid7())]}, 422, "subscribers"),
        ({"subscribers": "mia"}, 400, "subscribers"),
        ({"colour": "blue"}, 400, "colour"),
    ],
)
async def test_what_is_wrong_is_refused_by_name_and_changes_nothing(
    acme: Place, agent: str, fields: dict[str, Any], status: int, field: str
) -> None:
    """S13.2, S13.8, S3.3: on creation and on edit alike."""
    made = await make(acme, agent)
    path = f"/api/autopilots/{made['id']}"
    for answer in (
        await acme.owner("POST", "/api/autopilots", new(agent, **fields)),
        *([] if fields.get("status") else [await acme.owner("PATCH", path, fields)]),
    ):
        assert (answer.status, answer.body["field"]) == (status, field), answer.body
    assert (await acme.owner("GET", path)).body == made
    assert len((await acme.owner("GET", "/api/autopilots")).body["items"]) == 1


async def test_an_edit_touches_only_what_it_names(acme: Place, agent: str) -> None:
    """S13.2: presence decides, and null is a value."""
    made = await make(acme, agent, issue_title_template="On {{date}}")
    path = f"/api/autopilots/{made['id']}"
    edited = (await acme.owner("PATCH", path, {"issue_title_template": None})).body
    assert edited == made | {
        "issue_title_template": None,
        "version": 2,
        "rule_version": 2,
        "rule_version_id": edited["rule_version_id"],
        "updated_at": edited["updated_at"],
    }
    again = await acme.owner("PATCH", path, {"issue_title_template": " ", "title": made["title"]})
    assert again.body == edited
    assert len(await versions(acme, made)) == 2


async def test_an_edit_made_on_an_old_state_is_a_conflict(acme: Place, agent: str) -> None:
    """S13.2: by version in the body or If-Match; without either the last word wins."""
    made = await make(acme, agent)
    path = f"/api/autopilots/{made['id']}"
    assert (await acme.owner("PATCH", path, {"title": "One", "version": 1})).status == 200
    late = await acme.owner("PATCH", path, {"title": "Two", "version": 1})
    assert late.problem() == (409, "edit_conflict", None)
    late = await acme.owner("PATCH", path, {"title": "Two"}, headers={"If-Match": '"1"'})
    assert late.problem() == (409, "edit_conflict", None)
    both = await acme.owner("PATCH", path, {"title": "Two", "version": 2}, headers={"If-Match": '"1"'})
    assert both.problem() == (409, "edit_conflict", None)
    fine = await acme.owner("PATCH", path, {"title": "Three"}, headers={"If-Match": 'W/"2"'})
    assert (fine.status, fine.headers["Etag"]) == (200, '"3"')
    for tag in ('"abc"', '"2", "3"', ""):
        odd = await acme.owner("PATCH", path, {"title": "Four"}, headers={"If-Match": tag})
        assert odd.problem() == (400, "malformed", "If-Match"), tag
    retired = await acme.owner("DELETE", path, headers={"If-Match": '"1"'})
    assert retired.problem() == (409, "edit_conflict", None)
    unheeded = await acme.owner("POST", path + "/trigger", headers={"If-Match": '"1"'})
    assert unheeded.problem() == (400, "malformed", "If-Match")
    assert (await acme.owner("DELETE", path, headers={"If-Match": '"3"'})).status == 204
    assert (await acme.owner("PATCH", path, {"title": "Five"})).status == 200


async def test_subscribers_are_replaced_and_an_equal_list_is_no_edit(
    api: Api, acme: Place, agent: str
) -> None:
    """S13.7, S5.5: they publish nothing, but others must notice the edit."""
    mia, _ = await api.joined(acme, "mia")
    tom, _ = await api.joined(acme, "tom")
    made = await make(acme, agent, subscribers=[str(mia)])
    path = f"/api/autopilots/{made['id']}"
    both = (await acme.owner("PATCH", path, {"subscribers": [str(tom), str(mia), str(tom)]})).body
    assert (both["subscribers"], both["version"], both["rule_version"]) == ([str(mia), str(tom)], 2, 1)
    assert (await acme.owner("PATCH", path, {"subscribers": [str(mia), str(tom)]})).body == both
    none = (await acme.owner("PATCH", path, {"subscribers": []})).body
    assert (none["subscribers"], none["version"]) == ([], 3)


async def test_archiving_is_idempotent_and_lists_hide_it(acme: Place, agent: str) -> None:
    """S2.7."""
    made = await make(acme, agent)
    path = f"/api/autopilots/{made['id']}"
    assert (await acme.owner("DELETE", path)).status == 204
    assert (await acme.owner("DELETE", path)).status == 204
    assert (await acme.owner("PATCH", path, {"status": "archived"})).status == 200
    assert [v["change"] for v in await versions(acme, made)] == ["archive", "create"]
    assert ids(await acme.owner("GET", "/api/autopilots")) == []
    assert ids(await acme.owner("GET", "/api/autopilots?status=archived")) == [UUID(made["id"])]
    paused = await acme.owner("PATCH", path, {"status": "paused"})
    assert paused.problem() == (422, "invalid_value", "status")
    restored = await acme.owner("PATCH", path, {"status": "active"})
    assert (restored.body["status"], restored.body["archived_at"]) == ("active", None)


async def test_who_may_do_what_and_what_each_is_told(api: Api, acme: Place, agent: str) -> None:
    """S6.1 to S6.4, S6.7: creator, admin, collaborator, member, program."""
    mia_id, mia = await api.joined(acme, "mia")
    tom_id, tom = await api.joined(acme, "tom")
    _, ada = await api.joined(acme, "ada", Role.ADMIN)
    program = await api.program(acme, TokenKind.SERVICE)
    made = (await mia("POST", "/api/autopilots", new(agent))).body
    path = f"/api/autopilots/{made['id']}"

    async def rights(client: Any) -> tuple[bool, bool]:
        body = (await client("GET", path)).body
        listed = (await client("GET", "/api/autopilots")).body["items"][0]
        assert (listed["can_write"], listed["can_manage_access"]) == (
            body["can_write"],
            body["can_manage_access"],
        )
        return body["can_write"], body["can_manage_access"]

    assert [await rights(c) for c in (mia, ada, acme.owner, tom, program)] == [
        *[(True, True)] * 3,
        *[(False, False)] * 2,
    ]
    assert (await tom("PATCH", path, {"title": "Mine"})).problem() == (403, "forbidden", None)
    assert (await tom("DELETE", path)).status == 403
    assert (await program("PATCH", path, {"title": "Mine"})).problem() == (403, "wrong_token_kind", None)

    granted = await mia("POST", f"{path}/collaborators", {"user_id": str(tom_id)})
    again = await ada("POST", f"{path}/collaborators", {"user_id": str(tom_id)})
    assert granted.status == again.status == 200
    assert granted.body == again.body
    assert [c["user_id"] for c in granted.body["collaborators"]] == [str(tom_id)]
    assert await rights(tom) == (True, False)
    edited = (await tom("PATCH", path, {"description": "Tom's way."})).body
    assert (edited["rule_owner_id"], edited["creator_id"]) == (str(tom_id), str(mia_id))
    refused = await tom("POST", f"{path}/collaborators", {"user_id": str(mia_id)})
    assert refused.problem() == (403, "forbidden", None)
    stranger = await mia("POST", f"{path}/collaborators", {"user_id": str(uuid7())})
    assert stranger.problem() == (422, "invalid_value", "user_id")

    for _ in range(2):
        revoked = await mia("DELETE", f"{path}/collaborators/{tom_id}")
        assert (revoked.status, revoked.body) == (200, {"collaborators": []})
    assert (await tom("PATCH", path, {"title": "Mine"})).status == 403


async def test_another_workspace_does_not_exist(api: Api, acme: Place, agent: str) -> None:
    """S6.6: 404 for every verb, with valid ids of the other workspace."""
    made = await make(acme, agent)
    path = f"/api/autopilots/{made['id']}"
    trigger = (await acme.owner("POST", f"{path}/triggers", {"kind": "webhook"})).body
    other = await api.place("globex")
    one = f"{path}/triggers/{trigger['id']}"
    for method, target, body in [
        ("GET", path, None),
        ("PATCH", path, {"title": "Mine"}),
        ("DELETE", path, None),
        ("GET", f"{path}/versions", None),
        ("GET", f"{path}/triggers", None),
        ("POST", f"{path}/triggers", {"kind": "webhook"}),
        ("PATCH", one, {"enabled": False}),
        ("DELETE", one, None),
        ("POST", f"{one}/rotate-url", {}),
        ("PUT", f"{one}/signing-secret", {"secret": "s" * 16}),
        ("DELETE", f"{one}/signing-secret", None),
        ("POST", f"{path}/collaborators", {"user_id": str(other.owner_id)}),
        ("DELETE", f"{path}/collaborators/{acme.owner_id}", None),
    ]:
        answer = await (
            other.owner(method, target, body) if body is not None else other.owner(method, target)
        )
        assert answer.problem() == (404, "not_found", None), (method, target)
    theirs = await other.owner("POST", "/api/autopilots", new(agent))
    assert theirs.problem() == (422, "invalid_value", "assignee_id")
    assert (await other.owner("GET", "/api/autopilots")).body["items"] == []


async def test_an_assignee_is_checked_without_telling_what_is_private(
    api: Api, acme: Place, agent: str
) -> None:
    """S13.5, S4.7: one answer for unknown and private; squads need a live leader; activation needs a runtime."""
    db = api.database
    mia_id, mia = await api.joined(acme, "mia")
    private, _ = await world.make_agent(db, acme.id, acme.owner_id)
    shared, _ = await world.make_agent(db, acme.id, acme.owner_id, shared_with=(mia_id,))
    unbound, _ = await world.make_agent(db, acme.id, mia_id, online=None)
    archived, _ = await world.make_agent(db, acme.id, mia_id)
    offline, _ = await world.make_agent(db, acme.id, mia_id, online=False)
    async with db.transaction() as conn:
        await conn.execute("UPDATE agent SET archived_at = now() WHERE id = $1", archived)
    headless = await world.make_squad(db, acme.id, mia_id, None)
    secretive = await world.make_squad(db, acme.id, mia_id, private)
    good = await world.make_squad(db, acme.id, mia_id, shared)

    async def attempt(assignee: object, kind: str = "agent", **fields: Any) -> tuple[int, str | None]:
        answer = await mia("POST", "/api/autopilots", new(str(assignee), assignee_type=kind, **fields))
        return answer.status, answer.body.get("code")

    unknown = await mia("POST", "/api/autopilots", new(str(uuid7())))
    hidden = await mia("POST", "/api/autopilots", new(str(private)))
    assert unknown.body["detail"] == hidden.body["detail"]
    assert unknown.problem() == hidden.problem() == (422, "invalid_value", "assignee_id")
    assert await attempt(shared) == (201, None)
    assert await attempt(offline) == (201, None)
    assert await attempt(archived) == (422, "invalid_value")
    assert await attempt(unbound) == (422, "agent_runtime_required")
    assert await attempt(unbound, status="paused") == (201, None)
    assert await attempt(headless, "squad") == (422, "invalid_value")
    assert await attempt(secretive, "squad") == (403, "invocation_not_allowed")
    assert await attempt(good, "squad") == (201, None)
    assert await attempt(good) == (422, "invalid_value")


async def test_activating_is_checked_for_whoever_does_it(api: Api, acme: Place) -> None:
    """S13.5: the agent was fit when the rule was made; what counts is now, and the person who resumes."""
    db = api.database
    tom_id, tom = await api.joined(acme, "tom")
    agent_id, _ = await world.make_agent(db, acme.id, acme.owner_id)
    made = await make(acme, str(agent_id))
    path = f"/api/autopilots/{made['id']}"
    await acme.owner("POST", f"{path}/collaborators", {"user_id": str(tom_id)})
    assert (await tom("PATCH", path, {"status": "paused"})).status == 200
    assert (await tom("PATCH", path, {"status": "active"})).problem() == (403, "invocation_not_allowed", None)
    async with db.transaction() as conn:
        await conn.execute("UPDATE agent SET runtime_id = NULL WHERE id = $1", agent_id)
    late = await acme.owner("PATCH", path, {"status": "active"})
    assert late.problem() == (422, "agent_runtime_required", "assignee_id")
    assert (await acme.owner("PATCH", path, {"assignee_id": None})).status == 200
    bare = await acme.owner("PATCH", path, {"status": "active"})
    assert bare.problem() == (422, "invalid_value", "assignee_id")


async def test_the_list_is_paged_filtered_and_says_what_a_rule_does(
    api: Api, acme: Place, agent: str
) -> None:
    """S13.7: newest first; trigger kinds, earliest next run, last run."""
    setting = world.Setting(
        workspace_id=acme.id,
        owner_id=acme.owner_id,
        agent_id=AgentId(UUID(agent)),
        runtime_id=RuntimeId(uuid7()),
    )
    made = [await make(acme, agent, title=f"Rule {n}") for n in range(3)]
    await make(acme, agent, title="Bare", execution_mode="run_only", status="paused")
    busy = AutopilotId(UUID(made[0]["id"]))
    soon = await world.make_schedule_trigger(api.database, setting, busy, "* * * * *")
    await world.make_schedule_trigger(api.database, setting, busy, "0 0 1 1 *")
    await world.make_schedule_trigger(api.database, setting, busy, "* * * * *", enabled=False)
    await world.make_webhook_trigger(api.database, setting, busy)
    first = await acme.owner("GET", "/api/autopilots?limit=3")
    assert [i["title"] for i in first.body["items"]] == ["Bare", "Rule 2", "Rule 1"]
    rest = await acme.owner("GET", f"/api/autopilots?limit=3&cursor={first.body['next_cursor']}")
    assert rest.body["next_cursor"] is None
    (listed,) = rest.body["items"]
    detail = (await acme.owner("GET", f"/api/autopilots/{busy}")).body
    assert soon.next_run_at is not None
    assert listed["trigger_kinds"] == detail["trigger_kinds"] == ["schedule", "webhook"]
    assert (
        listed["next_run_at"] == detail["next_run_at"] == soon.next_run_at.isoformat().replace("+00:00", "Z")
    )
    for query, count in [
        ("status=paused", 1),
        ("status=active", 3),
        ("mode=run_only", 1),
        (f"assignee={agent}", 4),
        (f"assignee={uuid7()}", 0),
    ]:
        assert len((await acme.owner("GET", f"/api/autopilots?{query}")).body["items"]) == count, query
    assert (await acme.owner("GET", "/api/autopilots?status=asleep")).problem() == (
        422,
        "invalid_value",
        "status",
    )
    assert (await acme.owner("GET", "/api/autopilots?colour=blue")).status == 400


async def test_versions_are_paged_and_fingerprints_are_for_writers(api: Api, acme: Place, agent: str) -> None:
    """S5.4, S6.1: every member reads the history; a fingerprint would let a weak secret be guessed."""
    _, mia = await api.joined(acme, "mia")
    made = await make(acme, agent)
    path = f"/api/autopilots/{made['id']}"
    body = {"kind": "webhook", "signing_secret": "a shared secret!"}
    assert (await acme.owner("POST", f"{path}/triggers", body)).status == 201
    await acme.owner("PATCH", path, {"title": "Another"})
    first = await mia("GET", f"{path}/versions?limit=2")
    assert [v["version"] for v in first.body["items"]] == [3, 2]
    rest = await mia("GET", f"{path}/versions?limit=2&cursor={first.body['next_cursor']}")
    assert ([v["version"] for v in rest.body["items"]], rest.body["next_cursor"]) == ([1], None)
    for version in first.body["items"]:
        assert not {"secret_fingerprint", "url_fingerprint"} & version["rule"]["triggers"][0].keys()
    owned = (await versions(acme, made))[0]["rule"]["triggers"][0]
    assert {"secret_fingerprint", "url_fingerprint"} <= owned.keys()
    assert "a shared secret!" not in str(owned)
    far = await mia("GET", f"{path}/versions?cursor=_____________________w")
    assert far.status == 200
