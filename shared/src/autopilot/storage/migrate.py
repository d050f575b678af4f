"""Migrations: alembic revisions with SQL bodies, forward only, one migrator at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import msgspec
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from asyncpg.connect_utils import SessionAttribute
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from autopilot.domain.errors import InfrastructureError
from autopilot.kit.clock import SystemClock
from autopilot.storage.errors import Contention, translated

MIGRATION_LOCK = 0x6175746F70696C74  # the advisory lock's key: "autopilt"
LOCK_POLL_S = 0.2
REST_S = 5.0  # after a revision that did not get its locks, for those who waited behind it


class MigrationBusy(InfrastructureError):
    """Another migrator holds the migration lock."""


class SchemaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a database stands: the revision it has (None when empty) and the newest this program knows."""

    current: str | None
    head: str

    @property
    def ready(self) -> bool:
        """Whether this program can work on the database: a newer schema is fine, an older one is not."""
        return self.current is not None and self.current >= self.head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "autopilot.storage:migrations")
    return config


def _head() -> str:
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


async def _primary(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A connection to the server of `url` that can be written to, of several that it may name."""
    return await asyncpg.connect(url, target_session_attrs=SessionAttribute.read_write)


def _engine(url: str) -> AsyncEngine:
    # Our own connections: SQLAlchemy has its own idea of URLs, and none of those that name several servers.
    return create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: _primary(url), poolclass=NullPool
    )


async def _status(conn: asyncpg.Connection[asyncpg.Record]) -> SchemaStatus:
    current = None
    if await conn.fetchval("SELECT to_regclass('schema_version')"):
        current = await conn.fetchval("SELECT version_num FROM schema_version")
    return SchemaStatus(current=current, head=_head())


async def status(url: str) -> SchemaStatus:
    """Compare the database at `url` with this program; raises DatabaseUnavailable."""
    with translated():
        conn = await asyncpg.connect(url)
        try:
            return await _status(conn)
        finally:
            await conn.close()


@asynccontextmanager
async def _only_migrator(url: str, wait_s: float) -> AsyncIterator[SchemaStatus]:
    # Polled by the client: a session that waits for the lock inside Postgres would deadlock with CREATE INDEX CONCURRENTLY.
    clock = SystemClock()
    deadline = clock.monotonic() + wait_s
    conn = await _primary(url)
    try:
        while not await conn.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATION_LOCK):
            if clock.monotonic() > deadline:
                raise MigrationBusy(f"another migrator has held the migration lock for {wait_s:.0f} s")
            await clock.sleep(LOCK_POLL_S)
        yield await _status(conn)
    finally:
        await conn.close()


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


async def upgrade(url: str, *, wait_s: float = 120.0) -> SchemaStatus:
    """Bring the database at `url` (a direct one, no pooler) to the newest revision; a second migrator waits up to `wait_s`.

    A database that is already there, or that a newer program has migrated further, is left as it is. A revision that
    loses against the work of running services is undone and tried again, for `wait_s` at most, then Contention is raised.
    """
    with translated():
        async with _only_migrator(url, wait_s) as found:
            if found.ready:
                return found
            engine = _engine(url)
            try:
                await _upgraded(engine, wait_s)
            finally:
                await engine.dispose()
    return await status(url)


async def _upgraded(engine: AsyncEngine, wait_s: float) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + wait_s
    while True:
        try:
            with translated():
                async with engine.connect() as connection:
                    await connection.run_sync(_upgrade)
            return
        except Contention:
            if clock.monotonic() + REST_S > deadline:
                raise
        await clock.sleep(REST_S)


def upgrade_now(url: str) -> SchemaStatus:
    """`upgrade` for callers without an event loop."""
    return asyncio.run(upgrade(url))
