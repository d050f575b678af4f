"""Alembic's environment and the SQL bodies of the revisions; forward only."""
