"""Runs the database-backed job scheduler and admits a run for each due cron occurrence."""
