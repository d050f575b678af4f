"""The pool: it fails in our own words and within its deadline, and works again by itself (S1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import asyncpg
import pytest
from tests.support.tcp_proxy import tcp_proxy

from autopilot.domain.errors import InvalidValue
from autopilot.local.ports import free_port
from autopilot.local.postgres import PostgresServer
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import (
    ConstraintViolated,
    Contention,
    DatabaseUnavailable,
    SchemaBehind,
    translated,
)

SILENCE_S = 4.0  # long beside what a busy machine may add to it
COUNTERS = """
CREATE TABLE counter (id int CONSTRAINT counter_pk PRIMARY KEY, n int NOT NULL CONSTRAINT counter_positive CHECK (n >= 0));
INSERT INTO counter VALUES (1, 0), (2, 0);
"""


async def add(conn: Conn, row: int) -> None:
    await conn.execute("UPDATE counter SET n = n + 1 WHERE id = $1", row)


async def test_jsonb_comes_and_goes_as_python_values(postgres_url: str) -> None:
    value = {"a": [1, 2.5, None, "é\n"], "big": 12345678901234567890}
    async with Database(postgres_url, name="test") as database, database.connection() as conn:
        assert await conn.fetchval("SELECT $1::jsonb", value) == value
        assert await conn.fetchval("SELECT $1::jsonb -> 'a' ->> 3", value) == "é\n"


async def test_sessions_carry_their_name_zone_and_timeouts(postgres_url: str) -> None:
    settings = {"lock_timeout": "300"}
    async with (
        Database(postgres_url, name="ingress", settings=settings) as database,
        database.connection() as conn,
    ):
        found = [
            await conn.fetchval("SELECT current_setting($1)", name)
            for name in (
                *("application_name", "timezone", "lock_timeout", "statement_timeout"),
                "idle_in_transaction_session_timeout",
            )
        ]
    assert found == ["autopilot-ingress", "UTC", "300ms", "20s", "15s"]


async def test_a_use_case_that_is_cancelled_holds_no_lock(empty_postgres_url: str) -> None:
    """PG9: its transaction ends with it, and the next one gets the row."""
    added = asyncio.Event()

    async def add_and_wait(conn: Conn) -> None:
        await add(conn, 1)
        added.set()
        await asyncio.Event().wait()

    async with Database(empty_postgres_url, name="test", settings={"lock_timeout": "6000"}) as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        waiting = asyncio.create_task(database.transact(add_and_wait))
        await added.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        await database.transact(lambda conn: add(conn, 1))
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT n FROM counter WHERE id = 1") == 1


async def test_a_transaction_is_committed_at_its_end_and_rolled_back_by_any_error(
    empty_postgres_url: str,
) -> None:
    async def add_and_fail(conn: Conn) -> None:
        await add(conn, 1)
        raise LookupError

    async with Database(empty_postgres_url, name="test") as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        with pytest.raises(LookupError):
            await database.transact(add_and_fail)
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT n FROM counter WHERE id = 1") == 0


async def test_a_busy_pool_is_unavailable_after_the_deadline_and_keeps_its_connections(
    empty_postgres_url: str,
) -> None:
    async with Database(empty_postgres_url, name="test", max_size=1, acquire_timeout_s=30) as database:
        async with database.connection() as conn:
            backend = await conn.fetchval("SELECT pg_backend_pid()")
            database.acquire_timeout_s = 0.05
            with pytest.raises(DatabaseUnavailable):
                await database.ping()
            database.acquire_timeout_s = 30
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT pg_backend_pid()") == backend


async def test_opening_does_not_wait_for_a_server_that_is_away() -> None:
    async with Database(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", name="test") as database:
        with pytest.raises(DatabaseUnavailable):
            await database.ping()


async def test_a_database_that_went_away_is_unavailable_and_works_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    server = PostgresServer(tmp_path / "postgres", durable=False)

    async def add_while_the_server_dies(conn: Conn) -> None:
        await add(conn, 1)
        await asyncio.to_thread(server.stop, immediate=True)
        await add(conn, 1)

    try:
        server.start()
        async with Database(server.url, name="test", max_size=3) as database:
            async with database.transaction() as conn:
                await conn.execute(COUNTERS)
            with pytest.raises(DatabaseUnavailable):
                await database.transact(add_while_the_server_dies)
            with pytest.raises(DatabaseUnavailable):
                await database.ping()
            await asyncio.to_thread(server.start)
            async with database.connection() as conn:
                assert await conn.fetchval("SELECT n FROM counter WHERE id = 1") == 0
    finally:
        await asyncio.to_thread(server.destroy)


async def test_a_session_ended_by_an_operator_is_unavailable_once(postgres_url: str) -> None:
    async def be_ended(conn: Conn) -> None:
        async with database.connection() as other:
            await other.fetchval("SELECT pg_terminate_backend($1)", conn.get_server_pid())
        await conn.fetchval("SELECT 1")

    async with Database(postgres_url, name="test", max_size=2) as database:
        with pytest.raises(DatabaseUnavailable):
            await database.transact(be_ended)
        await database.ping()


@pytest.mark.parametrize("told_by", [nullcontext, translated])
async def test_a_server_that_falls_silent_is_given_up_after_its_time_and_not_waited_for_again(
    postgres_url: str, told_by: Callable[[], AbstractContextManager[None]]
) -> None:
    """PG1: giving the connection back would wait for the same server, whoever has put the failure into our words."""

    async def ask(database: Database) -> None:
        async with database.connection() as conn:
            with told_by():
                await conn.fetchval("SELECT 1")

    async with (
        tcp_proxy(postgres_url) as proxy,
        Database(proxy.url, name="test", acquire_timeout_s=60, command_timeout_s=SILENCE_S) as database,
    ):
        await database.ping()
        proxy.lose()
        with pytest.raises(DatabaseUnavailable):
            async with asyncio.timeout(1.8 * SILENCE_S):  # the driver itself would wait as long again
                await ask(database)
        await database.ping()


async def test_a_server_that_falls_silent_in_a_transaction_is_not_asked_to_roll_it_back(
    postgres_url: str,
) -> None:
    """PG1, HAZARDS 17: that would wait for it once more; nothing of the transaction stays."""

    async def lose_in_the_middle(conn: Conn) -> None:
        await add(conn, 1)
        proxy.lose()
        await add(conn, 2)

    async with (
        tcp_proxy(postgres_url) as proxy,
        Database(proxy.url, name="test", acquire_timeout_s=60, command_timeout_s=SILENCE_S) as database,
    ):
        async with database.connection() as conn:
            await conn.execute(COUNTERS)
        with pytest.raises(DatabaseUnavailable):
            async with asyncio.timeout(1.8 * SILENCE_S):
                await database.transact(lose_in_the_middle)
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT sum(n) FROM counter") == 0


async def test_a_primary_that_became_read_only_is_unavailable_and_not_trusted_again(
    postgres_url: str,
) -> None:
    """25006: the old primary after a failover; its pooled connections are dropped and new ones must be writable."""

    async def write_on_what_became_read_only(conn: Conn) -> None:
        await conn.execute("SET TRANSACTION READ ONLY")
        await conn.execute("DELETE FROM inbox_item")

    async with Database(postgres_url, name="test", max_size=1) as database:
        async with database.connection() as conn:
            old = conn.get_server_pid()
        with pytest.raises(DatabaseUnavailable):
            await database.transact(write_on_what_became_read_only)
        async with database.connection() as conn:
            assert conn.get_server_pid() != old
            name = await conn.fetchval("SELECT current_database()")
            await conn.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with Database(postgres_url, name="test") as database:
        with pytest.raises(DatabaseUnavailable):
            await database.ping()


async def test_transact_does_a_use_case_that_lost_a_deadlock_again(empty_postgres_url: str) -> None:
    both_hold_one = asyncio.Barrier(2)
    tries: list[int] = []

    def in_order(first: int, second: int) -> Callable[[Conn], Awaitable[None]]:
        async def use_case(conn: Conn) -> None:
            tries.append(first)
            await add(conn, first)
            if tries.count(first) == 1:
                await both_hold_one.wait()
            await add(conn, second)

        return use_case

    async with Database(empty_postgres_url, name="test", settings={"deadlock_timeout": "50"}) as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        await asyncio.gather(database.transact(in_order(1, 2)), database.transact(in_order(2, 1)))
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT array_agg(n ORDER BY id) FROM counter") == [2, 2]
    # The one that lost may take its first row again before the other is awake, and lose once more.
    assert len(tries) >= 3


async def test_transact_gives_up_with_contention_after_its_tries(empty_postgres_url: str) -> None:
    tries = 0

    async def use_case(conn: Conn) -> None:
        nonlocal tries
        tries += 1
        await add(conn, 1)

    async with Database(empty_postgres_url, name="test", settings={"lock_timeout": "20"}) as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        async with database.transaction() as holder:
            await add(holder, 1)
            with pytest.raises(Contention):
                await database.transact(use_case, tries=3)
    assert tries == 3


async def test_transact_does_not_repeat_what_is_not_contention(empty_postgres_url: str) -> None:
    tries = 0

    async def use_case(conn: Conn) -> None:
        nonlocal tries
        tries += 1
        await conn.execute("UPDATE counter SET n = -1 WHERE id = 1")

    async with Database(empty_postgres_url, name="test") as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        with pytest.raises(ConstraintViolated) as caught:
            await database.transact(use_case)
    assert (caught.value.constraint, tries) == ("counter_positive", 1)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("INSERT INTO counter VALUES (1, 0)", ConstraintViolated),
        ("INSERT INTO counter VALUES (3, NULL)", ConstraintViolated),
        ("SELECT nothing FROM counter", SchemaBehind),
        ("SELECT 1 FROM nothing", SchemaBehind),
        ("SET LOCAL statement_timeout = 10; SELECT pg_sleep(5)", Contention),
        ("DO $$ BEGIN RAISE serialization_failure; END $$", Contention),
        ("DO $$ BEGIN RAISE disk_full; END $$", DatabaseUnavailable),
        ("DO $$ BEGIN RAISE cannot_connect_now; END $$", DatabaseUnavailable),
        ("SELECT 1/0", asyncpg.DivisionByZeroError),
        ("SELEC 1", asyncpg.PostgresSyntaxError),
    ],
)
async def test_what_the_driver_raises_is_told_by_what_to_do(
    empty_postgres_url: str, statement: str, error: type[Exception]
) -> None:
    async with Database(empty_postgres_url, name="test") as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        with pytest.raises(error) as caught:
            async with database.transaction() as conn:
                await conn.execute(statement)
        assert type(caught.value) is error
        await database.ping()


async def test_a_table_that_changed_under_a_prepared_statement_is_done_again(empty_postgres_url: str) -> None:
    async def read(conn: Conn) -> int:
        return len(await conn.fetchrow("SELECT * FROM counter WHERE id = 1") or ())

    async with Database(empty_postgres_url, name="test", max_size=1) as database:
        async with database.transaction() as conn:
            await conn.execute(COUNTERS)
        assert await database.transact(read) == 2
        migrator = await asyncpg.connect(empty_postgres_url)
        await migrator.execute("ALTER TABLE counter ADD COLUMN note text")
        await migrator.close()
        assert await database.transact(read) == 3


async def test_misuse_of_a_connection_is_a_bug_and_not_the_weather(postgres_url: str) -> None:
    async with Database(postgres_url, name="test") as database, database.connection() as conn:
        with pytest.raises(asyncpg.InterfaceError):
            async with database.connection() as other:
                await asyncio.gather(other.fetchval("SELECT pg_sleep(0.1)"), other.fetchval("SELECT 1"))
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_url_that_is_none_is_refused_as_a_value() -> None:
    async with Database("mysql://127.0.0.1/none", name="test") as database:
        with pytest.raises(InvalidValue):
            await database.ping()


async def test_no_statement_is_compiled_before_it_runs(postgres_url: str) -> None:
    """A service's plan that cannot do without a scan it was denied costs ten thousand million, before 18: worth compiling."""
    async with Database(postgres_url, name="test") as database, database.connection() as conn:
        assert await conn.fetchval("SHOW jit") == "off"


async def test_behind_a_pooler_nothing_is_kept_in_the_session(postgres_url: str) -> None:
    """PG6: the role carries the timeouts, and no statement stays prepared on a server connection that others get."""
    async with Database(postgres_url, name="test", pooler=True, max_size=1) as database:
        async with database.connection() as conn:
            await conn.execute(
                "ALTER ROLE CURRENT_USER IN DATABASE " + await _quoted_name(conn) + " SET lock_timeout = '7s'"
            )
        await database._pool.expire_connections()
        async with database.connection() as conn:
            assert await conn.fetchval("SELECT $1::jsonb", {"a": 1}) == {"a": 1}
            assert await conn.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
            assert await conn.fetchval("SHOW application_name") == ""
            assert await conn.fetchval("SHOW lock_timeout") == "7s"


async def _quoted_name(conn: Conn) -> str:
    return str(await conn.fetchval("SELECT quote_ident(current_database())"))


async def test_the_size_of_the_pool_is_told(postgres_url: str) -> None:
    async with Database(postgres_url, name="test", max_size=2) as database:
        assert database.size == (0, 0)
        async with database.connection():
            assert database.size == (1, 0)
        assert database.size == (1, 1)
