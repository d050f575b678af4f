"""What a migration revision does: run its SQL body whole, inside the revision's transaction, within bounded time."""

from __future__ import annotations

from importlib import resources

from alembic import op
from sqlalchemy.util import await_only

LOCK_TIMEOUT = "4s"
STATEMENT_TIMEOUT = "60s"


def run_sql(name: str) -> None:
    """Run `migrations/<name>`."""
    run_body(resources.files("autopilot.storage").joinpath("migrations", name).read_text("utf-8"))


def run_body(body: str) -> None:
    """Run many statements at once; a lock not had within LOCK_TIMEOUT fails the revision whole.

    Who waits for it makes everybody else wait behind it: LOCK_TIMEOUT is less than the time that ingress holds a request.
    """
    op.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    op.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}'")
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    await_only(driver.execute(body))
