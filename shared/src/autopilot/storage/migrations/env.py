"""Alembic runs this file: one transaction a revision, with lock and statement timeouts, over the connection it is given."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(connection=connection, version_table="schema_version", transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
