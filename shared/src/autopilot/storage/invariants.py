"""The invariants: named queries that return no row at any instant, run together on one snapshot."""

from __future__ import annotations

import msgspec

from autopilot.storage import queries
from autopilot.storage.database import Conn, Database

SQL = queries.load("invariants")
LIVENESS = "overdue_"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One row that breaks an invariant; `fatal` is false for liveness, which only warns while services are down."""

    invariant: str
    subject: str
    detail: str

    @property
    def fatal(self) -> bool:
        return not self.invariant.startswith(LIVENESS)

    def __str__(self) -> str:
        return f"{'BROKEN' if self.fatal else 'warning'} {self.invariant}: {self.subject} {self.detail}"


async def check_in(conn: Conn) -> list[Finding]:
    """Run every invariant in the caller's transaction, which is REPEATABLE READ unless nobody else is writing."""
    return [
        Finding(invariant=name, subject=row["subject"], detail=row["detail"])
        for name, sql in SQL.items()
        for row in await conn.fetch(sql)
    ]


async def check_on(database: Database) -> list[Finding]:
    """Run every invariant in one REPEATABLE READ READ ONLY transaction."""
    async with database.snapshot() as conn:
        return await check_in(conn)


async def check(url: str) -> list[Finding]:
    """`check_on` for the database at `url`; raises DatabaseUnavailable or SchemaBehind."""
    async with Database(url, name="check", max_size=1) as database:
        return await check_on(database)
