"""The newest schema revision this program knows, and whether a database has it."""

from __future__ import annotations

from functools import cache
from importlib import resources

from autopilot.storage.database import Database
from autopilot.storage.errors import SchemaBehind


@cache
def wanted() -> str:
    """The number of the newest migration shipped with this program."""
    folder = resources.files("autopilot.storage").joinpath("migrations")
    return max(entry.name[:4] for entry in folder.iterdir() if entry.name.endswith(".sql"))


async def require_ready(database: Database) -> None:
    """For readiness: the database answers and its schema is at least ours. Raises DatabaseUnavailable, SchemaBehind."""
    async with database.connection() as conn:
        found = await conn.fetchval("SELECT version_num FROM schema_version")
    if found is None or found < wanted():
        raise SchemaBehind(
            f"the database's schema is {found or 'empty'}, this program wants {wanted()}; migrate it"
        )
