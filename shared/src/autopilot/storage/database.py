"""The database: a pool with deadlines, connections that fail into our own errors, whole use cases as transactions."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import asyncpg
import msgspec
from asyncpg.connect_utils import SessionAttribute
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from autopilot.kit import metrics
from autopilot.kit.config import CommonConfig
from autopilot.storage.errors import Contention, DatabaseUnavailable, translated

Conn: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
T = TypeVar("T")

_connections = metrics.gauge("db_pool_connections", "Connections of a pool, by use", ["pool", "use"])
_limit = metrics.gauge("db_pool_limit_connections", "How many connections a pool may have", ["pool"])
_waits = metrics.histogram("db_pool_wait_seconds", "How long a connection was waited for", ["pool"])
_unavailable = metrics.counter("db_unavailable_total", "Uses of the database that it failed", ["pool"])

_SESSION = {
    "timezone": "UTC",
    "lock_timeout": "4000",
    "statement_timeout": "20000",
    "idle_in_transaction_session_timeout": "15000",
    "jit": "off",  # no statement of ours works for long enough, and what the planner thinks of those below is beyond measure
}


# What a service asks again and again is answered by indexes. A plan is kept for long, and one that was made while a table was
# empty would go on reading all of it.
_SERVICE = {"enable_seqscan": "off"}


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def prepare_connection(conn: asyncpg.Connection[asyncpg.Record]) -> None:
    """Give a fresh connection the codecs every query of ours relies on (jsonb as Python values)."""
    await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=_encode_json, decoder=msgspec.json.decode)


async def _keep_session(_conn: object) -> None:
    """Spare each release a round trip: no code of ours changes a session, and the driver ends a transaction left open."""


@asynccontextmanager
async def _inside(transaction: Transaction) -> AsyncIterator[None]:
    """Committed when the block ends, rolled back when it raises.

    A server that has gone is not asked to roll back, since a silent one would be waited for once more: the connection is given up.
    """
    await transaction.start()
    try:
        yield
    except (TimeoutError, DatabaseUnavailable):
        raise
    except BaseException:
        await transaction.rollback()
        raise
    else:
        await transaction.commit()


class Database:
    """A pool of Postgres connections for one purpose.

    `dsn` is a libpq URL; at most `max_size` connections are opened, on demand; `acquire_timeout_s` bounds the wait for one
    (then DatabaseUnavailable), `command_timeout_s` the wait for an answer, after which the connection counts as lost:
    longer than the server's own `statement_timeout`. `pooler=True` suits a transaction-mode pgbouncer: no prepared
    statements are kept and no session settings are sent, so that the role must carry the timeouts. Opening never waits
    for the server: a service starts with its database away and resumes when it comes (S1.3).
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        max_size: int = 8,
        acquire_timeout_s: float = 5.0,
        command_timeout_s: float = 30.0,
        pooler: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.acquire_timeout_s = acquire_timeout_s
        self._command_timeout_s = command_timeout_s
        self._dsn = dsn
        self._max_size = max_size
        self._pooler = pooler
        self._waited = _waits.labels(name).observe
        self._failed = _unavailable.labels(name).inc
        self._settings = (
            {} if pooler else {"application_name": f"autopilot-{name}", **_SESSION, **(settings or {})}
        )

    @classmethod
    def configured(
        cls,
        config: CommonConfig,
        *,
        name: str,
        max_size: int | None = None,
        acquire_timeout_s: float = 5.0,
        command_timeout_s: float = 30.0,
        settings: dict[str, str] | None = None,
    ) -> Self:
        """The pool that a service's configuration describes; `max_size` where a part of it needs its own share.

        Tables are read by their indexes, whatever the planner knows of them.
        """
        return cls(
            config.database_url.reveal(),
            name=name,
            max_size=max_size or config.db_pool_max,
            acquire_timeout_s=acquire_timeout_s,
            command_timeout_s=command_timeout_s,
            pooler=config.db_pooler,
            settings={**_SERVICE, **(settings or {})},
        )

    async def __aenter__(self) -> Self:
        self._pool = asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._max_size,
            init=prepare_connection,
            reset=_keep_session,
            timeout=self.acquire_timeout_s,
            command_timeout=self._command_timeout_s,
            statement_cache_size=0 if self._pooler else 200,
            max_cached_statement_lifetime=0,  # or whoever comes once an hour prepares everything anew
            server_settings=self._settings,
            target_session_attrs=SessionAttribute.read_write,
        )
        await self._pool
        self._measured()
        return self

    def _measured(self) -> None:
        """Tell metrics of the pool for as long as it lives; of pools of one name, of the newest."""
        this = weakref.ref(self)

        def size() -> tuple[int, int]:
            return (0, 0) if (database := this()) is None else database.size

        _limit.labels(self.name).set(self._max_size)
        _connections.labels(self.name, "idle").set_function(lambda: size()[1])
        _connections.labels(self.name, "busy").set_function(lambda: size()[0] - size()[1])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._pool.terminate()
        else:
            await self._close()

    async def _close(self) -> None:
        try:
            with translated():
                await self._pool.close()
        except DatabaseUnavailable:
            self._pool.terminate()

    @property
    def size(self) -> tuple[int, int]:
        """Connections (open, idle)."""
        return self._pool.get_size(), self._pool.get_idle_size()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Conn]:
        """One connection in autocommit; raises DatabaseUnavailable when none can be had within the deadline."""
        acquired = False
        now = asyncio.get_running_loop().time
        began = now()
        try:
            with translated():
                async with self._pool.acquire(timeout=self.acquire_timeout_s) as conn:
                    acquired = True
                    self._waited(now() - began)
                    try:
                        yield conn
                    except (TimeoutError, DatabaseUnavailable):  # translated already, if it was caught inside
                        conn.terminate()  # else its release waits for the silent server once more
                        raise
        except DatabaseUnavailable:
            self._failed()
            # After a failover every pooled connection may point at the old primary: none of them is trusted again.
            # A pool that was merely busy keeps its own: reconnecting would make the rush worse.
            if acquired:
                await self._pool.expire_connections()
            raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Conn]:
        """One READ COMMITTED transaction: committed when the block ends, rolled back when it raises."""
        async with self.connection() as conn, _inside(conn.transaction()):
            yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Conn]:
        """One REPEATABLE READ READ ONLY transaction: all that is read in it was true at the same instant."""
        async with (
            self.connection() as conn,
            _inside(conn.transaction(isolation="repeatable_read", readonly=True)),
        ):
            yield conn

    async def transact(self, use_case: Callable[[Conn], Awaitable[T]], *, tries: int = 3) -> T:
        """Run a whole use case as one transaction, again from the start when it loses against another one.

        `use_case` must take no effect outside its connection. Contention is raised after `tries`; DatabaseUnavailable
        at once, since a COMMIT whose answer was lost may have happened: such a caller retries with the same ids.
        """

        async def whole(conn: Conn) -> T:
            async with _inside(conn.transaction()):
                return await use_case(conn)

        return await self.attempt(whole, tries=tries)

    async def attempt(self, use_case: Callable[[Conn], Awaitable[T]], *, tries: int = 3) -> T:
        """Run a use case whose statements are each a transaction of their own, again from the start as `transact` does."""
        for left in reversed(range(tries)):
            try:
                async with self.connection() as conn:
                    return await use_case(conn)
            except Contention:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def ping(self) -> None:
        """Prove that the database answers; raises DatabaseUnavailable."""
        async with self.connection() as conn:
            await conn.fetchval("SELECT 1")
