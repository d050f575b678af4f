"""Postgres away, silent, or keeping a secret that cannot be read: 503 in time, never 404 or 401, and back at once (S1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from tests.support.dispatching import assert_coherent
from tests.support.ingress import Ingress, running_ingress, signed
from tests.support.rules import (
    VAULT,
    Setting,
    WebhookTrigger,
    make_autopilot,
    make_setting,
    make_webhook_trigger,
)
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

from autopilot.engine.secrets import Vault, new_key
from autopilot.ingress import app, intake, receive
from autopilot.ingress.config import Config
from autopilot.ingress.receive import PATH
from autopilot.kit import points
from autopilot.kit.config import Secret
from autopilot.storage.database import Conn, Database

SECRET = "a signing secret of a decent length"
OLD_SECRET = "the secret before it, as long as it"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as database:
        yield database


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await make_setting(database)


@pytest.fixture
async def trigger(database: Database, setting: Setting) -> WebhookTrigger:
    autopilot = await make_autopilot(database, setting)
    return await make_webhook_trigger(database, setting, autopilot.id, secret=SECRET)


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(postgres_url) as proxy:
        yield proxy


async def accepted(ingress: Ingress, trigger: WebhookTrigger, key: str = "") -> bool:
    answer = await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}", Idempotency_Key=key))
    return answer.status == 200 and answer.body["status"] == "accepted"


async def test_without_postgres_the_answer_is_503_and_its_return_is_noticed(
    proxy: TcpProxy, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.3, S4.5, WH14: also an unknown token is not known to be unknown."""
    monkeypatch.setattr(app, "ACQUIRE_S", 30.0)  # nothing fails but by the connection that is refused
    async with running_ingress(proxy.url, ingress_hold_s=0.5) as ingress:
        assert await accepted(ingress, trigger)
        await proxy.down()
        for token in (trigger.token, "awt_" + "x" * 43):
            answer = await ingress.post(token, b"{}", signed(SECRET, b"{}"))
            assert (answer.status, answer.body["code"]) == (503, "unavailable")
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
        await proxy.up()
        assert await accepted(ingress, trigger)


async def test_a_request_is_held_over_a_short_outage(
    proxy: TcpProxy, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.16: for some seconds; and what was cut off in the middle is written once."""
    async with running_ingress(proxy.url, ingress_hold_s=8.0) as ingress:
        assert await accepted(ingress, trigger)
        with points.armed("ingress.before_write", "block") as point:
            posting = asyncio.create_task(accepted(ingress, trigger, "k"))
            await point.wait_reached()
            await proxy.down()
            point.release()
            waiting = asyncio.create_task(accepted(ingress, trigger))
            await asyncio.wait([posting, waiting], timeout=0.3)
            assert not posting.done()
            assert not waiting.done()
            await proxy.up()
            assert await posting
            assert await waiting
    async with database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM webhook_delivery") == 3
    await assert_coherent(database)


async def test_a_process_that_starts_without_postgres_serves_when_it_comes(
    proxy: TcpProxy, trigger: WebhookTrigger
) -> None:
    """S1.3."""
    await proxy.down()
    async with running_ingress(proxy.url, ingress_hold_s=8.0) as ingress:
        posting = asyncio.create_task(accepted(ingress, trigger))
        await asyncio.wait([posting], timeout=0.2)
        await proxy.up()
        assert await posting


async def test_a_silent_postgres_is_not_waited_for_beyond_the_answers_time(
    proxy: TcpProxy, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.16: answered within 9 s in all (here 1 s), whatever hangs."""
    monkeypatch.setattr(app, "COMMAND_S", 30.0)
    async with running_ingress(proxy.url, ingress_hold_s=30.0) as ingress:
        assert await accepted(ingress, trigger)
        monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 1.0)
        proxy.silence()
        began = asyncio.get_running_loop().time()
        answer = await ingress.post(trigger.token, b"{}", signed(SECRET, b"{}"))
        assert answer.status == 503
        assert asyncio.get_running_loop().time() - began < 20
        await proxy.down()
        await proxy.up()
        monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 9.0)
        assert await accepted(ingress, trigger)


async def test_connections_that_were_lost_without_a_word_are_given_up(
    proxy: TcpProxy, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PG1, S1.3: no error comes, no answer either; the request is held until it has gone over another connection."""
    monkeypatch.setattr(app, "COMMAND_S", 1.0)
    async with running_ingress(proxy.url, ingress_hold_s=8.0) as ingress:
        assert all(await asyncio.gather(*(accepted(ingress, trigger) for _ in range(20))))
        proxy.lose()
        assert all(await asyncio.gather(*(accepted(ingress, trigger) for _ in range(20))))
        proxy.lose()
        with points.armed("ingress.before_write", "block") as point:
            posting = asyncio.create_task(accepted(ingress, trigger))
            await point.wait_reached()
            proxy.lose()
            point.release()
            assert await posting


async def test_a_failover_is_waited_for(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """PG7: sessions ended (57P01), new ones not writable: the old primary, or one that is not promoted yet."""
    name = urlsplit(postgres_url).path.removeprefix("/")

    async def fail_over(conn: Conn, mode: str) -> None:
        await conn.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {mode}')
        await conn.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name = 'autopilot-ingress' AND datname = $1""",
            name,
        )

    async with running_ingress(postgres_url, ingress_hold_s=8.0) as ingress, database.connection() as conn:
        assert await accepted(ingress, trigger)
        await fail_over(conn, "on")
        posting = asyncio.create_task(accepted(ingress, trigger))
        await asyncio.wait([posting], timeout=0.5)
        assert not posting.done()
        await fail_over(conn, "off")
        assert await posting


async def test_an_exhausted_pool_is_503_in_time_and_everything_else_answers(
    postgres_url: str, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PG4: nobody waits without end for a connection; who waits is served if one becomes free in time."""
    pools: list[Database] = []

    def make_database(config: Config) -> Database:
        pools.append(app.make_database(config))
        return pools[0]

    monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 60.0)
    monkeypatch.setattr("tests.support.ingress.make_database", make_database)
    async with running_ingress(
        postgres_url, db_pool_max=2, ingress_hold_s=4.0, ingress_bad_per_min=1
    ) as ingress:
        assert await accepted(ingress, trigger)
        async with pools[0].connection(), pools[0].connection():
            pools[0].acquire_timeout_s = 0.2
            posts = [asyncio.create_task(ingress.post(trigger.token, b"{}")) for _ in range(50)]
            assert (await ingress.request("GET", "/favicon.ico")).status == 404
            assert (await ingress.request("GET", PATH + trigger.token)).status == 405
            assert (await ingress.post("malformed")).status == 404
            assert (await ingress.post("malformed")).status == 429
            assert not any(post.done() for post in posts)
            async with asyncio.timeout(30):  # long before the minute that an answer may take here
                refused = await asyncio.gather(*posts)
            for answer in refused:
                assert (answer.status, answer.body["code"]) == (503, "unavailable")
                assert 1 <= int(answer.headers["Retry-After"]) <= 60
            posting = asyncio.create_task(accepted(ingress, trigger))
            await asyncio.wait([posting], timeout=0.3)
            assert not posting.done()
        assert await posting


async def test_a_body_that_dawdles_is_cut_off(
    postgres_url: str, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.16: a sender who stops in the middle holds its connection no longer than an answer may take."""
    async with running_ingress(postgres_url) as ingress:
        # A token that was good is not looked up before its body is read.
        assert await accepted(ingress, trigger)
        monkeypatch.setattr(receive, "ANSWER_WITHIN_S", 0.3)
        host, _, port = ingress.base.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {receive.PATH}{trigger.token} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"a":')
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()


async def test_more_than_the_queue_holds_is_503_at_once(
    postgres_url: str, trigger: WebhookTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.16: the gathering queue is bounded."""
    monkeypatch.setattr(intake, "MAX_PENDING", 3)
    async with running_ingress(postgres_url) as ingress:
        with points.armed("ingress.before_write", "block") as point:
            posts = [asyncio.create_task(accepted(ingress, trigger)) for _ in range(20)]
            done, _ = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
            assert [await post for post in done] == [False] * len(done)
            point.release()
            outcomes = await asyncio.gather(*posts)
    assert 3 <= sum(outcomes) < 20


async def test_both_secrets_are_good_during_the_grace_and_one_after_it(
    postgres_url: str, trigger: WebhookTrigger, database: Database
) -> None:
    """S9.13: by the database's clock."""
    async with database.connection() as conn:
        await conn.execute(
            """UPDATE autopilot_trigger SET previous_secret_enc = $1, rev = rev + 1,
                      previous_secret_until = clock_timestamp() + interval '1 hour'""",
            VAULT.encrypt(OLD_SECRET),
        )
    async with running_ingress(postgres_url) as ingress:
        for secret, status in ((SECRET, 200), (OLD_SECRET, 200), ("neither of the two secrets", 401)):
            assert (await ingress.post(trigger.token, b"{}", signed(secret, b"{}"))).status == status
        async with database.connection() as conn:
            await conn.execute("UPDATE autopilot_trigger SET previous_secret_until = clock_timestamp()")
        for secret, status in ((SECRET, 200), (OLD_SECRET, 401)):
            assert (await ingress.post(trigger.token, b"{}", signed(secret, b"{}"))).status == status


async def test_a_secret_that_cannot_be_read_is_503_for_its_trigger_alone(
    postgres_url: str, setting: Setting, trigger: WebhookTrigger, database: Database
) -> None:
    """HAZARDS 27: never 401; a key that is missing is our fault, not the sender's."""
    lost = Vault([Secret(new_key())]).encrypt(SECRET)
    other = await make_webhook_trigger(database, setting, trigger.trigger.autopilot_id, secret=SECRET)
    async with database.connection() as conn:
        await conn.execute(
            "UPDATE autopilot_trigger SET secret_enc = $1, rev = rev + 1 WHERE id = $2", lost, trigger.id
        )
    async with running_ingress(postgres_url) as ingress:
        unread, read = await asyncio.gather(
            *(ingress.post(token, b"{}", signed(SECRET, b"{}")) for token in (trigger.token, other.token))
        )
    assert (unread.status, "Retry-After" in unread.headers) == (503, True)
    assert read.body["status"] == "accepted"
    async with database.connection() as conn:
        assert await conn.fetchval("SELECT count(*) FROM webhook_delivery") == 1
