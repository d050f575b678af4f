"""A database whose clock a test sets: to the second of a deadline, over a year in a minute, or standing still.

A schema that comes before pg_catalog on the search path has its own `now()`, `clock_timestamp()`, `statement_timestamp()`
and `transaction_timestamp()`; they tell what one row says. Connections without these settings keep the real time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

import asyncpg

_SETTINGS: Final = {"search_path": "sim, pg_catalog, public"}

# As volatile as what they stand in for, so that the planner may use the same indexes.
_FUNCTIONS: Final = {
    "now": "STABLE",
    "transaction_timestamp": "STABLE",
    "statement_timestamp": "STABLE",
    "clock_timestamp": "VOLATILE",
}

# Defaults of columns were bound to the real functions when the tables were made.
_DEFAULTS: Final = """
    SELECT d.adrelid::regclass::text AS table_name, quote_ident(a.attname) AS column_name,
           pg_get_expr(d.adbin, d.adrelid) AS expression
      FROM pg_attrdef d
      JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = ''
      JOIN pg_class c ON c.oid = d.adrelid AND c.relnamespace = 'public'::regnamespace
     WHERE pg_get_expr(d.adbin, d.adrelid) IN ('now()', 'clock_timestamp()')"""


class DatabaseTime:
    """The clock of one database; it stands still between settings."""

    def __init__(self, conn: asyncpg.Connection[asyncpg.Record], start: datetime) -> None:
        self._conn = conn
        self.now = start

    @property
    def url_settings(self) -> dict[str, str]:
        """What a session has to set to live in this time: `Database(url, settings=time.url_settings)`."""
        return dict(_SETTINGS)

    async def set(self, instant: datetime) -> None:
        """Every statement that begins from now on sees this time."""
        await self._conn.execute("UPDATE sim.clock SET instant = $1", instant)
        self.now = instant

    async def advance(self, by: timedelta) -> None:
        """Let so much time go by at once."""
        await self.set(self.now + by)


@asynccontextmanager
async def simulated_time(postgres_url: str, start: datetime) -> AsyncIterator[DatabaseTime]:
    """Give a migrated test database a clock of its own, which begins at `start`."""
    conn = await asyncpg.connect(postgres_url)
    try:
        await _install(conn, start)
        yield DatabaseTime(conn, start)
    finally:
        await conn.close()


async def _install(conn: asyncpg.Connection[asyncpg.Record], start: datetime) -> None:
    async with conn.transaction():
        await conn.execute("CREATE SCHEMA sim")
        await conn.execute("CREATE TABLE sim.clock (instant timestamptz NOT NULL)")
        await conn.execute("INSERT INTO sim.clock VALUES ($1)", start)
        for name, volatility in _FUNCTIONS.items():
            await conn.execute(
                f"""CREATE FUNCTION sim.{name}() RETURNS timestamptz LANGUAGE sql {volatility} PARALLEL SAFE
                    AS 'SELECT instant FROM sim.clock'"""
            )
        for row in await conn.fetch(_DEFAULTS):
            await conn.execute(
                f"ALTER TABLE {row['table_name']} ALTER {row['column_name']} SET DEFAULT sim.{row['expression']}"
            )
