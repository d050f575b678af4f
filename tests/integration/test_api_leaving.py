"""When a member leaves, and whom their rules are handed to (S5.8, HAZARDS 22); how somebody new comes in."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.support.api import Api, Client, Place, ids
from tests.support.dispatching import fetch, until_somebody_waits

from autopilot.domain.ids import AutopilotId, UserId
from autopilot.domain.permissions import Role
from autopilot.engine import leaving
from autopilot.engine.publish import hold_rule
from autopilot.engine.rule_access import hold_people
from autopilot.storage import autopilots, members


@pytest.fixture
async def agent(api: Api, acme: Place) -> str:
    body = {"name": "bot", "visibility": "workspace", "runtime_id": await api.runtime(acme, seen_s_ago=0)}
    return str((await acme.owner("POST", "/api/agents", body)).body["id"])


async def make_rule(client: Client, agent: str, **fields: Any) -> str:
    body = {"title": "Review", "description": "Read it.", "execution_mode": "run_only", "assignee_id": agent}
    answer = await client("POST", "/api/autopilots", body | fields)
    assert answer.status == 201, answer.body
    return str(answer.body["id"])


async def see(client: Client, rule: str) -> dict[str, Any]:
    return dict((await client("GET", f"/api/autopilots/{rule}")).body)


async def leave(client: Client, user_id: UserId) -> tuple[int, str | None]:
    answer = await client("DELETE", f"/api/members/{user_id}")
    return answer.status, answer.body["code"] if answer.body else None


async def test_who_leaves_takes_nothing_along_and_leaves_nothing_running(
    api: Api, acme: Place, agent: str
) -> None:
    """S5.8, AT5."""
    _, admin = await api.joined(acme, "ada", Role.ADMIN)
    mia_id, mia = await api.joined(acme, "mia")
    running, off = await make_rule(mia, agent), await make_rule(mia, agent, status="paused")
    others = await make_rule(acme.owner, agent, subscribers=[str(mia_id), str(acme.owner_id)])
    await acme.owner("POST", f"/api/autopilots/{others}/collaborators", {"user_id": str(mia_id)})
    private = (await acme.owner("POST", "/api/agents", {"name": "own"})).body["id"]
    await acme.owner("POST", f"/api/agents/{private}/shares", {"user_id": str(mia_id)})

    assert await leave(admin, mia_id) == (204, None)

    rule = await see(admin, running)
    assert (rule["status"], rule["pause_reason"], rule["creator_id"]) == ("paused", "owner_left", str(mia_id))
    newest = (await admin("GET", f"/api/autopilots/{running}/versions")).body["items"][0]
    assert (newest["publisher_type"], newest["change"]) == ("system", "pause")
    assert (await see(admin, off))["pause_reason"] is None
    kept = await see(admin, others)
    assert (kept["status"], kept["collaborators"], kept["subscribers"]) == (
        "active",
        [],
        [str(acme.owner_id)],
    )
    assert (await acme.owner("GET", f"/api/agents/{private}")).body["shared_with"] == []
    for watcher in (acme.owner, admin):
        items = (await watcher("GET", "/api/inbox")).body["items"]
        assert [(item["kind"], item["autopilot_id"]) for item in items] == [("autopilot_paused", running)]
        assert items[0]["title"] == "“Review” was paused by the system: its creator left the workspace"
    assert await fetch(api.database, "SELECT id FROM inbox_item WHERE user_id = $1", mia_id) == []
    assert (await mia("GET", "/api/autopilots")).status == 404
    assert await leave(admin, mia_id) == (404, "not_found")


async def test_who_may_send_whom_away(api: Api, acme: Place) -> None:
    """S5.8, S6.8."""
    ada_id, ada = await api.joined(acme, "ada", Role.ADMIN)
    mia_id, mia = await api.joined(acme, "mia")
    bob_id, _ = await api.joined(acme, "bob")
    assert await leave(mia, bob_id) == (403, "forbidden")
    assert await leave(ada, acme.owner_id) == (403, "forbidden")
    assert await leave(acme.owner, acme.owner_id) == (409, "last_owner")
    assert await leave(mia, mia_id) == (204, None)
    assert await leave(ada, bob_id) == (204, None)
    await acme.owner("PATCH", f"/api/members/{ada_id}", {"role": "owner"})
    assert await leave(ada, acme.owner_id) == (204, None)
    assert await leave(ada, ada_id) == (409, "last_owner")


async def test_many_rules_are_paused_in_batches_and_whoever_dies_between_goes_on_later(
    api: Api, acme: Place, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 22."""
    monkeypatch.setattr(leaving, "BATCH", 2)
    mia_id, mia = await api.joined(acme, "mia")
    rules = [await make_rule(mia, agent) for _ in range(5)]
    async with api.database.transaction() as conn:
        assert not await leaving.leave_batch(conn, acme.id, mia_id, acme.owner_id)
    paused = "SELECT id FROM autopilot WHERE pause_reason = 'owner_left'"
    assert len(await fetch(api.database, paused)) == 2
    assert (await acme.owner("GET", f"/api/members/{mia_id}")).status == 200
    assert await leave(acme.owner, mia_id) == (204, None)
    assert sorted(str(row["id"]) for row in await fetch(api.database, paused)) == sorted(rules)


async def test_a_rule_handed_to_somebody_who_is_leaving_is_either_refused_or_paused(
    api: Api, acme: Place, agent: str
) -> None:
    """HAZARDS 22: whoever comes first, no active rule belongs to somebody who has left."""
    mia_id, _ = await api.joined(acme, "mia")
    rule = await make_rule(acme.owner, agent)
    handed = {"creator_id": str(mia_id)}

    async with api.database.transaction() as conn:  # the hand-over holds her, so leaving waits for its end
        await hold_people(conn, acme.id, acme.owner_id, [mia_id], field="creator_id")
        going = asyncio.create_task(leave(acme.owner, mia_id))
        assert (await acme.owner("PATCH", f"/api/autopilots/{rule}", handed)).status == 200
        await until_somebody_waits(api.database)
    assert await going == (204, None)
    assert (await see(acme.owner, rule))["pause_reason"] == "owner_left"

    mia_id, _ = await api.joined(acme, "mia")
    other = await make_rule(acme.owner, agent)
    async with api.database.transaction() as conn:  # leaving comes first: the hand-over waits, and is refused
        await members.lock_to_leave(conn, acme.id, mia_id)
        handing = asyncio.create_task(acme.owner("PATCH", f"/api/autopilots/{other}", handed))
        await until_somebody_waits(api.database)
        await members.delete_member(conn, acme.id, mia_id)
    assert (await handing).problem() == (422, "invalid_value", "creator_id")
    assert (await see(acme.owner, other))["status"] == "active"


async def test_an_edit_that_takes_a_subscriber_off_and_their_leaving_do_not_deadlock(
    api: Api, acme: Place, agent: str
) -> None:
    """The rule comes before its subscribers, for leaving too (the lock order)."""
    mia_id, mia = await api.joined(acme, "mia")
    rule = AutopilotId(UUID(await make_rule(mia, agent, subscribers=[str(mia_id)])))
    async with api.database.transaction() as conn:
        await hold_rule(conn, acme.id, rule)
        going = asyncio.create_task(leave_once(api, acme, mia_id))
        await until_somebody_waits(api.database)
        await autopilots.replace_subscribers(conn, acme.id, rule, [])
    assert await going


async def leave_once(api: Api, acme: Place, user_id: UserId) -> bool:
    """One batch, which is not tried again after a deadlock."""
    async with api.database.transaction() as conn:
        return await leaving.leave_batch(conn, acme.id, user_id, acme.owner_id)


async def test_a_rule_is_handed_over_by_its_creator_and_admins_alone(
    api: Api, acme: Place, agent: str
) -> None:
    """S5.8."""
    mia_id, mia = await api.joined(acme, "mia")
    cleo_id, cleo = await api.joined(acme, "cleo")
    outsider = await api.place("other")
    rule = await make_rule(mia, agent)
    path = f"/api/autopilots/{rule}"
    trigger = (await mia("POST", f"{path}/triggers", {"kind": "webhook"})).body
    await mia("POST", f"{path}/collaborators", {"user_id": str(cleo_id)})
    assert (await cleo("PATCH", path, {"creator_id": str(cleo_id)})).status == 403
    assert (await cleo("PATCH", path, {"creator_id": str(mia_id)})).status == 200  # who has it already
    stranger = await mia("PATCH", path, {"creator_id": str(outsider.owner_id)})
    assert stranger.problem() == (422, "invalid_value", "creator_id")

    given = await mia("PATCH", path, {"creator_id": str(cleo_id)})
    assert (given.body["creator_id"], given.body["can_write"], given.body["rule_version"]) == (
        str(cleo_id),
        False,
        3,
    )
    newest = (await cleo("GET", f"{path}/versions")).body["items"][0]
    assert (newest["change"], newest["published_by"], newest["rule"]["creator_id"]) == (
        "hand over",
        str(mia_id),
        str(cleo_id),
    )
    (kept,) = (await cleo("GET", f"{path}/triggers")).body["items"]
    assert (kept["published_by"], kept["version"]) == (trigger["published_by"], trigger["version"])
    assert (await mia("PATCH", path, {"title": "Mine"})).status == 403


async def test_a_rule_is_not_handed_over_to_borrow_the_right_of_its_new_creator(
    api: Api, acme: Place, agent: str
) -> None:
    """S4.4, S6.7: a private agent that is no longer shared with somebody does not work for them through its owner."""
    mia_id, mia = await api.joined(acme, "mia")
    share = f"/api/agents/{agent}/shares"
    await acme.owner("PATCH", f"/api/agents/{agent}", {"visibility": "private"})
    await acme.owner("POST", share, {"user_id": str(mia_id)})
    rule = await make_rule(mia, agent)
    path = f"/api/autopilots/{rule}"
    await mia("POST", f"{path}/collaborators", {"user_id": str(mia_id)})
    await acme.owner("DELETE", f"{share}/{mia_id}")
    lent = await mia("PATCH", path, {"creator_id": str(acme.owner_id), "description": "For me."})
    assert lent.problem() == (403, "invocation_not_allowed", None)
    assert (await acme.owner("PATCH", path, {"creator_id": str(acme.owner_id)})).status == 200


async def test_a_rule_of_somebody_who_left_starts_again_in_other_hands_only(
    api: Api, acme: Place, agent: str
) -> None:
    """S5.8, S13.5."""
    mia_id, mia = await api.joined(acme, "mia")
    rule, archived = await make_rule(mia, agent), await make_rule(mia, agent)
    await mia("DELETE", f"/api/autopilots/{archived}")
    await leave(acme.owner, mia_id)
    for path in (f"/api/autopilots/{rule}", f"/api/autopilots/{archived}"):
        refused = await acme.owner("PATCH", path, {"status": "active"})
        assert refused.problem() == (409, "owner_left", None)
        taken = {"status": "active", "creator_id": str(acme.owner_id)}
        resumed = await acme.owner("PATCH", path, taken)
        assert (resumed.status, resumed.body["status"], resumed.body["pause_reason"]) == (200, "active", None)


async def test_somebody_new_is_invited_with_a_token_for_this_workspace_alone(api: Api, acme: Place) -> None:
    """S6.8."""
    other = await api.place("other")
    made = await acme.owner("POST", "/api/members", {"email": "New@Acme.example", "name": "New"})
    token = made.body["token"]
    assert (made.status, made.body["email"], token[:4]) == (201, "new@acme.example", "apt_")
    invited = api.client(token)
    assert (await invited("GET", "/api/workspaces/current")).body["slug"] == "acme"
    assert (await api.client(token, "other")("GET", "/api/workspaces/current")).status == 404
    own = await invited("POST", "/api/tokens", {"name": "laptop"})
    assert own.body["workspace_id"] == str(acme.id)
    (row,) = await fetch(
        api.database, "SELECT expires_at - created_at AS lives FROM api_token WHERE name = 'invitation'"
    )
    assert row["lives"].days == 7

    known = await other.owner("POST", "/api/members", {"email": "new@acme.example"})
    assert (known.status, known.body["token"]) == (201, None)
    assert len(ids(await invited("GET", "/api/tokens"))) == 2
