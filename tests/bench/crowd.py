"""Many rules with schedules in seconds: one of each is made as people make them, the rest are its copies in SQL."""

from __future__ import annotations

import asyncpg
from tests.support.rules import Setting, make_autopilot, make_schedule_trigger, make_setting

from autopilot.storage.database import Database

# Ids that rise, as real ones do; the number goes into the record, which has no such column, so that each copy is made anew.
_COPY_RULES = """
    INSERT INTO autopilot
    SELECT n.*
      FROM autopilot a, generate_series(2, $1) each,
           jsonb_populate_record(a, jsonb_build_object('each', each, 'id', pg_temp.rising_id(each))) n"""
_COPY_TRIGGERS = """
    INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone,
           catch_up, tzdata_version, next_run_at)
    SELECT pg_temp.rising_id(row_number() OVER ()), t.workspace_id, a.id, t.kind, t.published_by, t.published_version_id, t.cron,
           t.timezone, t.catch_up, t.tzdata_version, t.next_run_at
      FROM autopilot_trigger t, autopilot a, generate_series(1, $1) each
     WHERE each > 1 OR a.id <> t.autopilot_id"""
_RISING_ID = """
    CREATE FUNCTION pg_temp.rising_id(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE
    RETURN (lpad(to_hex(n), 12, '0') || substr(md5(n::text), 1, 20))::uuid"""


async def make_crowd(url: str, database: Database, *, rules: int, each: int) -> Setting:
    """`rules` active rules with `each` yearly schedules, next due at New Year; the database must be empty."""
    setting = await make_setting(database)
    autopilot = await make_autopilot(database, setting)
    await make_schedule_trigger(database, setting, autopilot.id, "0 0 1 1 *")
    conn = await asyncpg.connect(url)
    try:
        await conn.execute(
            "SET session_replication_role = replica"
        )  # copies need no check of their references
        await conn.execute(_RISING_ID)
        await conn.execute(_COPY_RULES, rules)
        await conn.execute(_COPY_TRIGGERS, each)
        made = await conn.fetchval("SELECT count(*) FROM autopilot_trigger WHERE next_run_at IS NOT NULL")
    finally:
        await conn.close()
    assert made == rules * each, f"{made} schedules of {rules * each}"
    return setting
