"""`autopilot events` as a process, against the real API behind a network that breaks (S12.2, S14)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.api import Api
from tests.support.cli import autopilot, environment
from tests.support.dispatching import execute
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.work import Shop, make_shop

from autopilot.kit.ids import uuid7
from autopilot.storage import events


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def happen(shop: Shop, *reasons: str) -> None:
    for reason in reasons:
        await execute(
            shop.database,
            """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
               VALUES (gen_random_uuid(), $1, $2, $2, 'run.done', jsonb_build_object('source', 'api', 'status', 'skipped', 'reason_code', $3::text))""",
            *(shop.place.id, uuid7(), reason),
        )
        async with shop.database.connection() as conn:
            await events.open_heads(conn, 10)
        await shop.database.transact(lambda conn: events.sequence(conn, 10))


def env_of(shop: Shop, base: str) -> dict[str, str]:
    return environment(
        base, AUTOPILOT_TOKEN=shop.owner.token or "", AUTOPILOT_WORKSPACE=shop.owner.workspace or ""
    )


@asynccontextmanager
async def following(
    shop: Shop, base: str, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "autopilot.cli", "events", "--follow", *arguments),
        env=env_of(shop, base),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(50):
            yield process, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_events_are_listed_for_people_and_programs(api: Api, shop: Shop) -> None:
    await happen(shop, "already_active", "runtime_offline", "schedule_missed")
    env = env_of(shop, api.base)
    table = await autopilot("", "events", env=env)
    heading, *lines = table.out.splitlines()
    assert heading.split() == ["TIME", "EVENT", "STATUS", "SOURCE", "AUTOPILOT", "RUN", "REASON", "CURSOR"]
    assert [line.split()[-2:] for line in lines] == [
        ["already_active", "1.1"], ["runtime_offline", "1.2"], ["schedule_missed", "1.3"],
    ]  # fmt: skip
    assert (table.code, table.err) == (0, "Later events: --after 1.3\n")

    programs = await autopilot("", "events", "--after", "1.1", "--limit", "1", "--output", "json", env=env)
    assert [msgspec.json.decode(line)["seq"] for line in programs.out.splitlines()] == [2]
    lost = await autopilot("", "events", "--after", "7.1", "--output", "json", env=env)
    assert lost.out == '{"kind":"reset","cursor":"1.3"}\n'
    assert "none of the history" in lost.err
    nonsense = await autopilot("", "events", "--after", "x", env=env)
    assert (nonsense.code, "after, malformed" in nonsense.err) == (1, True)


async def next_seq(out: asyncio.StreamReader) -> int:
    return int(msgspec.json.decode(await out.readline())["seq"])


async def test_a_follower_goes_on_where_it_was_when_the_connection_is_lost(api: Api, shop: Shop) -> None:
    """S12.2: also when nothing had been told yet, and while the network is silent; Ctrl-C ends it with 130."""
    await happen(shop, "already_active")
    async with (
        tcp_proxy(api.base) as proxy,
        following(shop, proxy.url, "--output", "json", "--after", "1.1") as (process, out),
    ):
        await happen(shop, "already_active")
        assert await next_seq(out) == 2
        await break_and_mend(proxy, shop)
        assert [await next_seq(out), await next_seq(out)] == [3, 4]
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert process.returncode == 130
        assert b"interrupted" in said
        assert b"Connected again." in said


async def break_and_mend(proxy: TcpProxy, shop: Shop) -> None:
    await proxy.down()
    await happen(shop, "runtime_offline", "schedule_missed")
    await proxy.up()


async def test_a_follower_for_people_ends_when_its_token_is_revoked(api: Api, shop: Shop) -> None:
    """S13: it does not ask for ever with a token that is good for nothing."""
    async with tcp_proxy(api.base) as proxy, following(shop, proxy.url) as (process, out):
        assert process.stderr is not None
        # Each round tells one more event, until the process has begun to listen.
        while True:
            await happen(shop, "already_active")
            try:
                heading = await asyncio.wait_for(out.readline(), 0.5)
                break
            except TimeoutError:
                continue
        line = await out.readline()
        assert heading.index(b"REASON") == line.index(b"already_active")
        await execute(shop.database, "UPDATE api_token SET revoked_at = now()")
        await proxy.down()
        await proxy.up()
        _, said = await process.communicate()
        assert process.returncode == 1
        assert b"unauthorized" in said


async def test_a_follower_that_never_reached_the_api_says_so_and_ends(shop: Shop) -> None:
    ran = await autopilot("", "events", "--follow", env=env_of(shop, "http://127.0.0.1:1"))
    assert (ran.code, ran.out) == (1, "")
    assert "Cannot reach the API" in ran.err
