"""Whether anything in the database has changed, told by a digest of every table."""

from __future__ import annotations

from autopilot.storage.database import Database


async def digest(database: Database) -> dict[str, str]:
    """A digest of the rows of each table, whatever their order."""
    async with database.transaction() as conn:
        tables = [
            row["name"]
            for row in await conn.fetch(
                "SELECT c.relname AS name FROM pg_class c"
                " WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY 1"
            )
        ]
        whole = " UNION ALL ".join(
            f"SELECT '{name}' AS name, md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) AS rows FROM {name} t"
            for name in tables
        )
        return {row["name"]: row["rows"] for row in await conn.fetch(whole)}
