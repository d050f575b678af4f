"""How many runs of each rule ended in each hour, and how (S7.13)."""

from __future__ import annotations

from datetime import datetime

from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("statistics")


async def compute_hour(conn: Conn, hour: datetime) -> int:
    """Count what ended in the hour that begins then, over whatever was counted before; how many rows that changed."""
    return len(await conn.fetch(SQL["compute_hour"], hour))
