"""The first workspace, made from the command line, and the service as a process."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import aiohttp
import asyncpg
from tests.support.api import running_api
from tests.support.rules import SECRET_KEY

COMMAND = ["-m", "autopilot.rules_api", "bootstrap"]


async def run(postgres_url: str, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *COMMAND,
        *arguments,
        env={**os.environ, "AUTOPILOT_DATABASE_URL": postgres_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_bootstrap_makes_a_workspace_that_its_tokens_open(postgres_url: str) -> None:
    given = ("--workspace", "acme", "--name", "Acme", "--email", "Ann@Acme.example", "--json")
    code, out, err = await run(postgres_url, *given)
    assert (code, err) == (0, "")
    made = json.loads(out)
    async with running_api(postgres_url) as api:
        mine = await api.client(made["token"], made["workspace"])("GET", "/api/workspaces/current")
        assert (mine.body["slug"], mine.body["role"], mine.body["issue_prefix"]) == ("acme", "owner", "AUT")
        machine = await api.client(made["runtime_token"])("GET", "/api/workspaces/current")
        assert machine.problem() == (403, "wrong_token_kind", None)


async def test_bootstrap_again_finds_what_is_there_and_makes_new_tokens(postgres_url: str) -> None:
    given = ("--workspace", "acme", "--name", "Acme", "--email", "ann@acme.example", "--json")
    first = json.loads((await run(postgres_url, *given))[1])
    again = json.loads((await run(postgres_url, *given, "--role", "member"))[1])
    assert {k: first[k] for k in ("workspace_id", "user_id")} == {
        k: again[k] for k in ("workspace_id", "user_id")
    }
    assert first["token"] != again["token"]
    conn = await asyncpg.connect(postgres_url)
    try:
        counts = await conn.fetchrow(
            "SELECT (SELECT count(*) FROM workspace), (SELECT count(*) FROM workspace_counter),"
            " (SELECT count(*) FROM event_head), (SELECT string_agg(role, ',') FROM member),"
            " (SELECT count(*) FROM api_token)"
        )
    finally:
        await conn.close()
    assert counts is not None
    assert tuple(counts) == (1, 1, 1, "owner", 4)


async def test_a_second_person_is_a_plain_member_unless_it_is_said_otherwise(postgres_url: str) -> None:
    """The command that makes the first owner must not make everybody one."""
    given = ("--workspace", "acme", "--name", "Acme", "--json", "--email")
    for email, role in (
        ("ann@acme.example", ()),
        ("bob@acme.example", ()),
        ("cy@acme.example", ("--role", "admin")),
    ):
        await run(postgres_url, *given, email, *role)
    conn = await asyncpg.connect(postgres_url)
    try:
        rows = await conn.fetch(
            "SELECT u.email, m.role FROM member m JOIN app_user u ON u.id = m.user_id ORDER BY u.email"
        )
    finally:
        await conn.close()
    assert [row["role"] for row in rows] == ["owner", "member", "admin"]


async def test_bootstrap_says_in_a_sentence_what_it_refuses(postgres_url: str) -> None:
    code, out, err = await run(postgres_url, "--workspace", "Not A Slug", "--name", "x", "--email", "a@b.c")
    assert (code, out) == (2, "")
    assert err.startswith("bootstrap: slug")
    code, out, err = await run(
        "postgresql://nobody@127.0.0.1:1/none", "--workspace", "acme", "--name", "x", "--email", "a@b.c"
    )
    assert (code, out) == (2, "")
    assert "unavailable" in err


async def test_the_service_starts_listens_and_stops_in_order(postgres_url: str) -> None:
    """S15."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "autopilot.rules_api",
        env={
            **os.environ,
            "AUTOPILOT_DATABASE_URL": postgres_url,
            "AUTOPILOT_API_PORT": "0",
            "AUTOPILOT_SECRET_KEYS": SECRET_KEY,
        },
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    ports: dict[str, int] = {}
    while "rules-api" not in ports:
        line = json.loads(await process.stderr.readline())
        if line["event"] == "listening":
            ports[line["what"]] = line["port"]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{ports['rules-api']}/api/agents") as answer,
    ):
        assert answer.status == 401
    process.terminate()
    await process.stderr.read()
    assert await process.wait() == 0
