"""Agents, squads and runtimes over REST."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.support.api import Api, Place

from autopilot.domain.ids import AgentId, AutopilotId
from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import AssigneeType, ExecutionMode
from autopilot.engine.rules import NewAutopilot, create_autopilot
from autopilot.kit.ids import uuid7


async def test_a_private_agent_is_seen_by_those_who_may_invoke_it(api: Api, acme: Place) -> None:
    """S4.4, S13.5: not listed for others, admins included, until it is shared."""
    mia_id, mia = await api.joined(acme, "mia")
    _, bob = await api.joined(acme, "bob")
    agent = (await bob("POST", "/api/agents", {"name": "coder"})).body
    assert (agent["visibility"], agent["can_invoke"], agent["can_share"]) == ("private", True, True)
    path = f"/api/agents/{agent['id']}"
    service = await api.program(acme, TokenKind.SERVICE)
    for client in (mia, acme.owner, service):
        assert (await client("GET", "/api/agents")).body["items"] == []
    assert (await mia("GET", path)).status == 404
    assert (await service("GET", path)).status == 404
    assert (await acme.owner("POST", f"{path}/shares", {"user_id": str(mia_id)})).status == 403

    for _ in range(2):
        shared = await bob("POST", f"{path}/shares", {"user_id": str(mia_id)})
        assert (shared.status, shared.body) == (200, {"shared_with": [str(mia_id)]})
    assert (await mia("GET", path)).body["can_invoke"] is True
    assert len((await mia("GET", "/api/agents")).body["items"]) == 1
    for _ in range(2):
        assert (await bob("DELETE", f"{path}/shares/{mia_id}")).body == {"shared_with": []}
    assert (await mia("GET", path)).status == 404

    assert (await bob("PATCH", path, {"visibility": "workspace"})).status == 200
    assert (await mia("GET", path)).body["can_edit"] is False
    assert (await service("GET", path)).status == 200


async def test_an_agent_is_shared_with_members_only(api: Api, acme: Place) -> None:
    other = await api.place("other")
    agent = (await acme.owner("POST", "/api/agents", {"name": "coder"})).body
    for stranger in (other.owner_id, uuid7()):
        refused = await acme.owner("POST", f"/api/agents/{agent['id']}/shares", {"user_id": str(stranger)})
        assert refused.problem() == (422, "invalid_value", "user_id")
    assert (await acme.owner("GET", f"/api/agents/{agent['id']}")).body["shared_with"] == []


async def test_an_admin_edits_an_agent_of_another_but_does_not_share_it(api: Api, acme: Place) -> None:
    """S6.8."""
    _, bob = await api.joined(acme, "bob")
    _, mia = await api.joined(acme, "mia")
    agent = (await bob("POST", "/api/agents", {"name": "coder", "visibility": "workspace"})).body
    path = f"/api/agents/{agent['id']}"
    assert (await acme.owner("PATCH", path, {"visibility": "private"})).status == 403
    assert (await mia("PATCH", path, {"name": "mine"})).problem() == (403, "forbidden", None)
    assert (await acme.owner("PATCH", path, {"name": "builder"})).body["name"] == "builder"


async def test_an_agents_runtime_is_one_of_the_workspace(api: Api, acme: Place) -> None:
    """S4.7, S13.5."""
    other = await api.place("other")
    foreign, box = await api.runtime(other), await api.runtime(acme)
    gone = await api.runtime(acme, "gone")
    async with api.database.transaction() as conn:
        await conn.execute("UPDATE runtime SET deleted_at = now() WHERE id = $1", UUID(gone))
    agent = (await acme.owner("POST", "/api/agents", {"name": "coder", "runtime_id": box})).body
    assert agent["runtime_id"] == box
    path = f"/api/agents/{agent['id']}"
    for wrong in (foreign, gone, str(uuid7())):
        refused = await acme.owner("POST", "/api/agents", {"name": "x", "runtime_id": wrong})
        assert refused.problem() == (422, "invalid_value", "runtime_id")
        refused = await acme.owner("PATCH", path, {"runtime_id": wrong, "name": "renamed"})
        assert refused.problem() == (422, "invalid_value", "runtime_id")
    now = (await acme.owner("GET", path)).body
    assert (now["runtime_id"], now["name"]) == (box, "coder")
    assert (await acme.owner("PATCH", path, {"name": "renamed"})).body["runtime_id"] == box
    assert (await acme.owner("PATCH", path, {"runtime_id": None})).body["runtime_id"] is None


async def test_an_archived_agent_is_hidden_not_edited_and_frees_its_name(api: Api, acme: Place) -> None:
    agent = (await acme.owner("POST", "/api/agents", {"name": "coder"})).body
    path = f"/api/agents/{agent['id']}"
    taken = await acme.owner("POST", "/api/agents", {"name": "coder"})
    assert taken.problem() == (409, "name_taken", "name")
    for _ in range(2):
        assert (await acme.owner("DELETE", path)).status == 204
    assert (await acme.owner("GET", "/api/agents")).body["items"] == []
    assert len((await acme.owner("GET", "/api/agents?archived=true")).body["items"]) == 1
    assert (await acme.owner("PATCH", path, {"name": "x"})).problem() == (409, "archived", None)
    assert (await acme.owner("POST", "/api/agents", {"name": "coder"})).status == 201


async def test_a_squads_leader_is_a_live_agent_that_one_may_invoke(api: Api, acme: Place) -> None:
    """S13.5: one answer for unknown, foreign, private and archived."""
    other = await api.place("other")
    _, bob = await api.joined(acme, "bob")
    _, mia = await api.joined(acme, "mia")
    private = (await bob("POST", "/api/agents", {"name": "secret"})).body["id"]
    foreign = (await other.owner("POST", "/api/agents", {"name": "far", "visibility": "workspace"})).body[
        "id"
    ]
    old = (await bob("POST", "/api/agents", {"name": "old", "visibility": "workspace"})).body["id"]
    assert (await bob("DELETE", f"/api/agents/{old}")).status == 204
    lead = (await bob("POST", "/api/agents", {"name": "lead", "visibility": "workspace"})).body["id"]
    squad = (await mia("POST", "/api/squads", {"name": "web", "leader_id": lead})).body
    path = f"/api/squads/{squad['id']}"
    answers = set()
    for wrong in (private, foreign, old, str(uuid7())):
        refused = await mia("POST", "/api/squads", {"name": "x", "leader_id": wrong})
        answers.add((*refused.problem(), refused.body["detail"]))
        # Moving a squad to an archived leader is possible, and pauses its rules (S11.5).
        assert wrong == old or (await mia("PATCH", path, {"leader_id": wrong})).status == 422
    assert {answer[:3] for answer in answers} == {(422, "invalid_value", "leader_id")}
    assert len(answers) == 1
    assert (await mia("PATCH", path, {"leader_id": None})).problem() == (400, "malformed", "leader_id")
    assert (await mia("GET", path)).body["leader_id"] == lead
    assert (await bob("PATCH", path, {"name": "y"})).status == 403
    assert (await bob("GET", path)).body["can_edit"] is False
    assert (await acme.owner("PATCH", path, {"name": "y"})).body["name"] == "y"
    assert (await mia("DELETE", path)).status == 204
    assert (await mia("GET", "/api/squads")).body["items"] == []


@pytest.mark.parametrize(("seen_s_ago", "state"), [(None, "offline"), (5, "online"), (50, "offline")])
async def test_a_runtime_is_online_within_45_seconds(
    api: Api, acme: Place, seen_s_ago: int | None, state: str
) -> None:
    """S4.3."""
    box = await api.runtime(acme, seen_s_ago=seen_s_ago)
    assert (await acme.owner("GET", f"/api/runtimes/{box}")).body["state"] == state
    async with api.database.transaction() as conn:
        await conn.execute("UPDATE runtime_heartbeat SET usable = false, detail = 'no program'")
    listed = (await acme.owner("GET", "/api/runtimes")).body["items"]
    assert [r["state"] for r in listed] == ["unusable" if state == "online" else "offline"]


# ---- what rules depend on


async def new_rule(api: Api, place: Place, kind: AssigneeType, assignee_id: str) -> str:
    async with api.database.transaction() as conn:
        rule = await create_autopilot(
            conn,
            place.id,
            place.owner_id,
            NewAutopilot(
                id=AutopilotId(uuid7()),
                title="nightly",
                description="Do it.",
                execution_mode=ExecutionMode.RUN_ONLY,
                assignee_type=kind,
                assignee_id=AgentId(UUID(assignee_id)),
            ),
        )
    return str(rule.id)


async def rule_facts(api: Api, rule_id: str) -> tuple[str, str | None, str, str]:
    """Status, pause reason, assignee's kind, and the publisher of the newest version."""
    async with api.database.connection() as conn:
        row = await conn.fetchrow(
            "SELECT a.status, a.pause_reason, a.assignee_type, v.publisher_type FROM autopilot a"
            " JOIN autopilot_rule_version v ON v.id = a.version_id WHERE a.id = $1",
            UUID(rule_id),
        )
    assert row is not None
    return row[0], row[1], row[2], row[3]


async def new_agent(api: Api, place: Place, name: str) -> str:
    box = await api.runtime(place, f"box of {name}")
    made = await place.owner("POST", "/api/agents", {"name": name, "runtime_id": box})
    return str(made.body["id"])


@pytest.mark.parametrize("kind", [AssigneeType.AGENT, AssigneeType.SQUAD])
async def test_a_rule_is_paused_when_its_agent_is_unbound_or_archived(
    api: Api, acme: Place, kind: AssigneeType
) -> None:
    """S11.5: itself or through the squad that it leads."""
    for change, reason in (("PATCH", "agent_runtime_required"), ("DELETE", "target_unavailable")):
        lead, other = await new_agent(api, acme, f"a{change}"), await new_agent(api, acme, f"b{change}")
        squad = (await acme.owner("POST", "/api/squads", {"name": change, "leader_id": lead})).body["id"]
        rule = await new_rule(api, acme, kind, lead if kind is AssigneeType.AGENT else squad)
        untouched = await new_rule(api, acme, AssigneeType.AGENT, other)
        path = f"/api/agents/{lead}"
        renamed = await acme.owner("PATCH", path, {"name": f"c{change}"})
        assert renamed.status == 200
        assert (await rule_facts(api, rule))[0] == "active"
        if change == "PATCH":
            assert (await acme.owner("PATCH", path, {"runtime_id": None})).status == 200
        else:
            assert (await acme.owner("DELETE", path)).status == 204
        assert await rule_facts(api, rule) == ("paused", reason, kind.value, "system")
        assert (await rule_facts(api, untouched))[0] == "active"


@pytest.mark.parametrize("reason", ["agent_runtime_required", "target_unavailable"])
async def test_a_squad_that_moves_to_a_leader_that_cannot_work_pauses_its_rules(
    api: Api, acme: Place, reason: str
) -> None:
    """S11.5, OB4: an unbound one, or an archived one; people are told why."""
    lead, second = await new_agent(api, acme, "lead"), await new_agent(api, acme, "second")
    if reason == "target_unavailable":
        useless = await new_agent(api, acme, "old")
        assert (await acme.owner("DELETE", f"/api/agents/{useless}")).status == 204
    else:
        useless = (await acme.owner("POST", "/api/agents", {"name": "bare"})).body["id"]
    squad = (await acme.owner("POST", "/api/squads", {"name": "web", "leader_id": lead})).body["id"]
    rule = await new_rule(api, acme, AssigneeType.SQUAD, squad)
    assert (await acme.owner("PATCH", f"/api/squads/{squad}", {"leader_id": second})).status == 200
    assert (await rule_facts(api, rule))[:2] == ("active", None)
    assert (await acme.owner("PATCH", f"/api/squads/{squad}", {"leader_id": useless})).status == 200
    assert (await rule_facts(api, rule))[:2] == ("paused", reason)
    (told,) = (await acme.owner("GET", "/api/inbox")).body["items"]
    assert (told["kind"], told["autopilot_id"]) == ("autopilot_paused", rule)


async def test_an_archived_squad_hands_its_rules_to_its_leader(api: Api, acme: Place) -> None:
    """S11.5, S5.5."""
    lead = await new_agent(api, acme, "lead")
    squad = (await acme.owner("POST", "/api/squads", {"name": "web", "leader_id": lead})).body["id"]
    rule = await new_rule(api, acme, AssigneeType.SQUAD, squad)
    assert (await acme.owner("DELETE", f"/api/squads/{squad}")).status == 204
    assert await rule_facts(api, rule) == ("active", None, "agent", "system")
    (told,) = (await acme.owner("GET", "/api/inbox")).body["items"]
    assert (told["kind"], told["autopilot_id"]) == ("autopilot_handed_over", rule)
    assert "its squad" in told["title"]


async def test_a_deleted_runtime_leaves_no_rule_active_that_needs_it(api: Api, acme: Place) -> None:
    """S11.5, S6.8: rules of its agents, themselves or as leaders, are paused at once and people are told; others go on."""
    box, other_box = await api.runtime(acme, "box"), await api.runtime(acme, "other")
    _, mia = await api.joined(acme, "mia")
    agents = {}
    for name, place in (("one", box), ("lead", box), ("far", other_box)):
        made = await acme.owner("POST", "/api/agents", {"name": name, "runtime_id": place})
        agents[name] = made.body["id"]
    squad = (await acme.owner("POST", "/api/squads", {"name": "web", "leader_id": agents["lead"]})).body["id"]
    hit = [
        await new_rule(api, acme, AssigneeType.AGENT, agents["one"]),
        await new_rule(api, acme, AssigneeType.SQUAD, squad),
    ]
    spared = await new_rule(api, acme, AssigneeType.AGENT, agents["far"])
    path = f"/api/runtimes/{box}"
    assert (await mia("GET", path)).body["can_edit"] is False
    assert (await mia("DELETE", path)).problem() == (403, "forbidden", None)
    assert (await (await api.place("other")).owner("DELETE", path)).status == 404
    assert (await acme.owner("DELETE", path)).status == 204
    assert (await acme.owner("DELETE", path)).status == 404
    assert (await acme.owner("GET", path)).status == 404
    for rule in hit:
        assert (await rule_facts(api, rule))[:2] == ("paused", "agent_runtime_required")
    assert (await rule_facts(api, spared))[0] == "active"
    for name in ("one", "lead"):
        assert (await acme.owner("GET", f"/api/agents/{agents[name]}")).body["runtime_id"] is None
    told = (await acme.owner("GET", "/api/inbox")).body["items"]
    assert {item["autopilot_id"] for item in told} == set(hit)


async def test_no_rule_is_left_active_whoever_comes_first_when_its_runtime_goes(
    api: Api, acme: Place
) -> None:
    """S11.5, S13.5: rules are activated and agents edited while their runtime is deleted."""
    box = await api.runtime(acme)
    agents, paused = [], []
    for number in range(6):
        made = await acme.owner("POST", "/api/agents", {"name": f"a{number}", "runtime_id": box})
        agents.append(made.body["id"])
        paused.append(await new_rule(api, acme, AssigneeType.AGENT, agents[-1]))
        assert (
            await acme.owner("PATCH", f"/api/autopilots/{paused[-1]}", {"status": "paused"})
        ).status == 200
    activate = [acme.owner("PATCH", f"/api/autopilots/{rule}", {"status": "active"}) for rule in paused]
    rename = [acme.owner("PATCH", f"/api/agents/{agent}", {"name": f"b{agent}"[:90]}) for agent in agents]
    rebind = [acme.owner("PATCH", f"/api/agents/{agents[0]}", {"runtime_id": box})]
    answers = await asyncio.gather(
        *activate[:3], acme.owner("DELETE", f"/api/runtimes/{box}"), *activate[3:], *rename, *rebind
    )
    assert {answer.status for answer in answers} <= {200, 204, 422}
    assert {(await rule_facts(api, rule))[0] for rule in paused} == {"paused"}
    assert {(await acme.owner("GET", f"/api/agents/{agent}")).body["runtime_id"] for agent in agents} == {
        None
    }


async def test_a_runtime_is_renamed_and_limited_by_whoever_registered_it_and_by_admins(
    api: Api, acme: Place
) -> None:
    """S6.8, S11.7: its machine finds it again under the name that it knows, however people call it."""
    program = await api.program(acme, TokenKind.RUNTIME)
    said = {"name": "build-1", "concurrency": 4, "capabilities": {"gpu": "2"}}

    async def register(name: str = "build-1") -> dict[str, object]:
        answer = await program("POST", "/api/runtime/register", said | {"name": name})
        return {"status": answer.status, **answer.body}

    box = str((await register())["runtime_id"])
    path = f"/api/runtimes/{box}"
    _, mia = await api.joined(acme, "mia")
    assert (await mia("PATCH", path, {"name": "mine"})).status == 403
    changed = (await acme.owner("PATCH", path, {"name": "Big one", "concurrency_limit": 2})).body
    assert (changed["name"], changed["concurrency"], changed["concurrency_limit"]) == ("Big one", 4, 2)
    again = await register()
    assert (again["runtime_id"], again["name"], again["concurrency"]) == (box, "Big one", 2)
    # Nobody else may be called so, neither by people nor by itself; and its own name is still its own.
    assert (await register("Big one"))["code"] == "name_taken"
    other = str((await register("build-2"))["runtime_id"])
    taken = await acme.owner("PATCH", f"/api/runtimes/{other}", {"name": "Big one"})
    assert taken.problem() == (409, "name_taken", "name")
    for limit, concurrency in ((None, 4), (9, 4)):
        assert (await acme.owner("PATCH", path, {"concurrency_limit": limit})).status == 200
        assert (await register())["concurrency"] == concurrency
    assert (await acme.owner("PATCH", path, {"name": "build-1"})).status == 200
    assert (await register())["runtime_id"] == box
    for wrong in ({"concurrency_limit": 0}, {"concurrency_limit": 1001}, {"name": " "}):
        assert (await acme.owner("PATCH", path, wrong)).status == 422
    for much in (
        "b" * 9000,
        [1e300] * 1000,
    ):  # the numbers are short as JSON, and long as Postgres writes them
        too_much = await program("POST", "/api/runtime/register", {"name": "x", "capabilities": {"a": much}})
        assert too_much.problem() == (422, "invalid_value", "capabilities")
