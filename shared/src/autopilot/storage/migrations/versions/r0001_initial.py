"""The whole schema."""

from __future__ import annotations

from autopilot.storage.revision import run_sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    run_sql("0001_initial.sql")
