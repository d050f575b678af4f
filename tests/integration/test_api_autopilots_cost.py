"""What rules cost and how many may hang on one: queries a page, limits, secrets that no key opens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asyncpg.pool import PoolConnectionProxy
from tests.support import rules as world
from tests.support.api import Api, Place, running_api

from autopilot.engine.secrets import Vault, new_key
from autopilot.kit.config import Secret
from autopilot.storage.autopilots import SQL


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[Api]:
    async with running_api(postgres_url) as api:
        yield api


@pytest.fixture
async def setting(api: Api, acme: Place) -> world.Setting:
    agent_id, runtime_id = await world.make_agent(api.database, acme.id, acme.owner_id)
    return world.Setting(
        workspace_id=acme.id, owner_id=acme.owner_id, agent_id=agent_id, runtime_id=runtime_id
    )


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements that this process sends within the block."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("execute", "fetch", "fetchrow", "fetchval"):
            original = getattr(PoolConnectionProxy, name)

            async def counting(
                self: Any, query: str, *args: Any, _original: Any = original, **options: Any
            ) -> Any:
                seen.append(query)
                return await _original(self, query, *args, **options)

            patch.setattr(PoolConnectionProxy, name, counting)
        yield seen


async def test_a_page_of_rules_takes_three_queries_however_many_there_are(
    api: Api, acme: Place, setting: world.Setting
) -> None:
    """S13.7: the caller, the page, its collaborators."""
    async with api.database.transaction() as conn:
        for _ in range(30):
            made = await world.make_autopilot(conn, setting)
            await world.make_schedule_trigger(conn, setting, made.id)
    with counted() as seen:
        answer = await acme.owner("GET", "/api/autopilots?limit=30")
    assert len(answer.body["items"]) == 30
    assert len(seen) == 3


async def test_a_page_of_ten_thousand_rules_reads_one_page(
    api: Api, acme: Place, setting: world.Setting
) -> None:
    """S13.7: what is read grows neither with the rules nor with their runs."""
    made = await world.make_autopilot(api.database, setting)
    async with api.database.transaction() as conn:
        await world.make_schedule_trigger(conn, setting, made.id)
        await conn.execute(
            """INSERT INTO autopilot SELECT n.* FROM autopilot a, generate_series(1, 9999) each,
                      jsonb_populate_record(a, jsonb_build_object('each', each, 'id', uuid7_floor(now() - make_interval(secs => 60 + each)))) n"""
        )
        await conn.execute("ANALYZE autopilot")
        plan = await conn.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {_list_query()}", acme.id, None, None, None, None, 21
        )
    with counted() as seen:
        answer = await acme.owner("GET", "/api/autopilots?limit=20")
    assert (len(answer.body["items"]), len(seen)) == (20, 3)
    assert answer.body["items"][0]["id"] == str(made.id)
    following = await acme.owner("GET", f"/api/autopilots?limit=20&cursor={answer.body['next_cursor']}")
    assert not {item["id"] for item in following.body["items"]} & {
        item["id"] for item in answer.body["items"]
    }
    read = [node["Actual Rows"] * node["Actual Loops"] for node in _nodes(plan) if "Relation Name" in node]
    assert max(read) <= 21


async def test_the_last_run_is_found_without_looking_at_the_others(
    api: Api, acme: Place, setting: world.Setting
) -> None:
    """S13.7: one index probe for each rule, whatever it has run."""
    made = await world.make_autopilot(api.database, setting)
    async with api.database.transaction() as conn:
        await conn.execute(
            """INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, execution_mode, rule_version_id,
                      rule_version, reason_code, failure_reason, completed_at, originator_id, accountable_id, attribution_source)
               SELECT uuid7_floor(now() - make_interval(secs => n)), $1, $2, 'manual',
                      CASE n WHEN 1 THEN 'failed' ELSE 'skipped' END, 'create_issue', $3, 1,
                      CASE n WHEN 1 THEN 'internal_error' ELSE 'runtime_offline' END, 'told', now(), $4, $4, 'direct_human'
                 FROM generate_series(1, 5000) n""",
            *(acme.id, made.id, made.version_id, acme.owner_id),
        )
        await conn.execute("ANALYZE autopilot_run")
        plan = await conn.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {_list_query()}", acme.id, None, None, None, None, 20
        )
    (listed,) = (await acme.owner("GET", "/api/autopilots")).body["items"]
    assert listed["last_run_status"] == "failed"
    looked_at = [node for node in _nodes(plan) if node.get("Relation Name") == "autopilot_run"]
    assert [node["Actual Rows"] for node in looked_at] == [1]


async def test_a_rule_has_at_most_100_subscribers_and_100_collaborators(
    api: Api, acme: Place, setting: world.Setting
) -> None:
    """S13.8."""
    made = await world.make_autopilot(api.database, setting)
    path = f"/api/autopilots/{made.id}"
    async with api.database.transaction() as conn:
        people = [str(await world.make_user(conn, acme.id)) for _ in range(101)]
        await conn.execute(
            """INSERT INTO autopilot_collaborator (workspace_id, autopilot_id, user_id, granted_by)
               SELECT $1, $2, u, $3 FROM unnest($4::uuid[]) u""",
            *(acme.id, made.id, acme.owner_id, people[:100]),
        )
    over = await acme.owner("PATCH", path, {"subscribers": people})
    assert over.problem() == (422, "invalid_value", "subscribers")
    assert len((await acme.owner("PATCH", path, {"subscribers": people[:100]})).body["subscribers"]) == 100
    over = await acme.owner("POST", f"{path}/collaborators", {"user_id": people[100]})
    assert over.problem() == (422, "invalid_value", "user_id")
    again = await acme.owner("POST", f"{path}/collaborators", {"user_id": people[0]})
    assert (again.status, len(again.body["collaborators"])) == (200, 100)


async def test_a_token_that_no_key_opens_is_trouble_of_ours(
    api: Api, acme: Place, setting: world.Setting
) -> None:
    """HAZARDS 27: 503 for whoever would be shown it, and readers see the rule as ever."""
    _, mia = await api.joined(acme, "mia")
    made = await world.make_autopilot(api.database, setting)
    async with api.database.transaction() as conn:
        hook = await world.make_webhook_trigger(conn, setting, made.id)
        lost = Vault([Secret(new_key())]).encrypt(hook.token)
        await conn.execute("UPDATE autopilot_trigger SET token_enc = $1", lost)
    path = f"/api/autopilots/{made.id}/triggers"
    refused = await acme.owner("GET", path)
    assert refused.problem() == (503, "unavailable", None)
    assert hook.token not in str(refused.body)
    assert (await mia("GET", path)).status == 200
    healed = await acme.owner("POST", f"{path}/{hook.id}/rotate-url")
    assert healed.status == 200
    assert (await acme.owner("GET", path)).body["items"] == [healed.body]


def _list_query() -> str:

    return SQL["list_autopilots"].partition("\n")[2]


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:

    waiting = [json.loads(plan)[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        yield node
