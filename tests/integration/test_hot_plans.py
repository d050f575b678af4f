"""What runs again and again costs what is due, not what exists: rows looked at, counted on the plans that Postgres really ran."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from autopilot.dispatcher.__main__ import SESSION
from autopilot.kit.config import CommonConfig, Secret
from autopilot.storage import queries
from autopilot.storage.database import Database

pytestmark = pytest.mark.timeout(180)

ROWS = 20_000
AN_HOUR = datetime.now(UTC) - timedelta(hours=5)
A_TIME = datetime(2026, 11, 21, 21, 25, 29, tzinfo=UTC)  # which the ids below tell
EVENTS, BATCH = 100_000, 1000
_ID = "('01a20000-0000-7000-8000-' || lpad(to_hex({}), 12, '0'))::uuid"


def uid(number: int) -> UUID:
    return UUID(f"01a20000-0000-7000-8000-{number:012x}")


_W, _I = f"{_ID.format(1)}", _ID.format("i")
_FILL = f"""
SET session_replication_role = replica;
INSERT INTO autopilot (id, workspace_id, title, description, execution_mode, creator_id, rule_owner_id, version_id)
SELECT {_I}, {_W}, 't', 'd', 'run_only', {_W}, {_W}, {_I} FROM generate_series(1, {ROWS}) i;
INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_version_id, cron, timezone, catch_up, tzdata_version, next_run_at)
SELECT {_I}, {_W}, {_I}, 'schedule', {_I}, '0 0 1 1 *', 'UTC', 'latest', 'x', now() + (i - 10) * interval '1 minute'
  FROM generate_series(1, {ROWS}) i;
INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_version_id, provider, token_hash, token_enc, token_hint)
SELECT {_ID.format("2000000 + i")}, {_W}, {_I}, 'webhook', {_I}, 'generic', i::text::bytea, 'enc', 'abcd' FROM generate_series(1, {ROWS}) i;
INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id) SELECT {_ID.format("2000000 + i")}, 'k', {_I} FROM generate_series(1, {ROWS}) i;
INSERT INTO dispatch_queue (run_id, autopilot_id) SELECT {_I}, {_W} FROM generate_series(1, {ROWS}) i;
INSERT INTO dispatch_queue (delivery_id, autopilot_id) SELECT {_I}, {_W} FROM generate_series(1, 100) i;
INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, available_at, enqueued_at)
SELECT 'paced', {_ID.format("50000 + i")}, {_W}, now() + (i - 10) * interval '1 minute', now() FROM generate_series(1, {ROWS}) i;
INSERT INTO runtime (id, workspace_id, name, concurrency) SELECT {_I}, {_W}, i::text, 100 FROM generate_series(1, 100) i;
INSERT INTO runtime_heartbeat (runtime_id, seen_at, claiming) VALUES ({_ID.format(2)}, now(), {_ID.format(4)});
INSERT INTO agent (id, workspace_id, name, owner_id, runtime_id)
SELECT {_I}, {_W}, i::text, {_W}, {_I} FROM generate_series(1, 100) i;
INSERT INTO agent_task (id, workspace_id, agent_id, run_id, prompt, status, runtime_id, lease_token, lease_until, claimed_at, finished_at)
SELECT {_I}, {_W}, {_ID.format("1 + i % 100")}, {_I}, 'p', s.status, CASE WHEN s.held THEN {_ID.format("1 + i % 100")} END,
       CASE WHEN s.held THEN {_I} END, CASE WHEN s.held THEN now() + (i - 200) * interval '1 second' END,
       CASE WHEN s.held THEN now() END, CASE WHEN s.status = 'completed' THEN now() END
  FROM generate_series(1, {ROWS}) i
 CROSS JOIN LATERAL (SELECT (ARRAY['running', 'queued', 'completed'])[1 + i % 3] AS status, i % 3 = 0 AS held) s;
INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
SELECT {_I}, {_W}, {_I}, {_I}, 'run.done', '{{}}' FROM generate_series(1, {EVENTS}) i;
INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
SELECT {_W}, i, {_I}, {_I}, {_ID.format("1000000 + i")}, 'run.done', '{{}}', now() FROM generate_series(1, {ROWS}) i;
INSERT INTO event_head (workspace_id, last_seq, relayed_seq)
SELECT {_I}, CASE i WHEN 1 THEN {ROWS} ELSE 1 END, CASE i WHEN 1 THEN {ROWS} ELSE 1 END FROM generate_series(1, 5000) i;
UPDATE autopilot SET resumed_at = now() - interval '1 year' WHERE id = {_ID.format(3)};
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, execution_mode, rule_version_id, rule_version, task_id, accountable_id,
       attribution_source, reason_code, failure_reason, started_at, completed_at)
SELECT {_I}, {_W}, {_ID.format("CASE i % 10 WHEN 0 THEN i ELSE 3 END")}, 'api', s.status, 'run_only', {_I}, 1, CASE s.status WHEN 'completed' THEN {_I} END,
       {_W}, 'rule_owner', s.code, s.code, CASE s.status WHEN 'completed' THEN now() END, now() - i * interval '10 seconds'
  FROM generate_series(1, {ROWS}) i
 CROSS JOIN LATERAL (SELECT CASE WHEN i % 400 = 1 THEN 'failed' WHEN i % 2 = 1 THEN 'skipped' ELSE 'completed' END AS status,
                            CASE WHEN i % 400 = 1 THEN 'task_failed' WHEN i % 2 = 1 THEN 'runtime_offline' END AS code) s;
INSERT INTO inbox_item (id, workspace_id, user_id, kind, title, autopilot_id, run_id, created_at)
SELECT {_I}, {_W}, {_I}, 'autopilot_failing', 't', {_ID.format("1 + i % 10")}, {_I}, now() - i * interval '1 minute' FROM generate_series(1, {ROWS}) i;
INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status, headers, response_status,
       response_body, run_id)
SELECT {_I}, {_W}, {_ID.format(2)}, {_ID.format(2)}, 'generic', 'e', 'not_required', 'dispatched', '{{}}', 200, '{{}}', {_I}
  FROM generate_series(1, {ROWS}) i;
INSERT INTO autopilot_rule_version (id, workspace_id, autopilot_id, version, publisher_type, published_by, change, rule)
SELECT {_I}, {_W}, {_ID.format(3)}, i, 'user', {_W}, 'edit', jsonb_build_object('status', s.status, 'triggers',
       jsonb_build_array(jsonb_build_object('id', {_ID.format(3)}, 'enabled', s.status = 'active')))
  FROM generate_series(1, 2000) i CROSS JOIN LATERAL (SELECT CASE WHEN i > 1980 THEN 'paused' ELSE 'active' END AS status) s;
SET session_replication_role = origin;
ANALYZE;
"""

# Where a table is analyzed or not is said here, not by who comes along while a test is at work.
_LEFT_ALONE = """
DO $$ DECLARE tab regclass; BEGIN
    FOR tab IN SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', tab);
    END LOOP;
END $$
"""

_HOOKS = [uid(2_000_000 + n) for n in (7, 8, 9)]
_TWO_NEW_ONE_REPEATED: tuple[object, ...] = (
    json.dumps(
        [
            {
                "id": str(uid(3_000_000 + n)),
                "run_id": str(uid(4_000_000 + n)),
                "dedupe_key": key,
                "headers": {},
                "response_body": {},
                "ruling": n + 1,
            }
            for n, key in enumerate(["k", "n", "n"])
        ]
    ),
    *([b"{}"] * 3, _HOOKS, [1] * 3, [1] * 3, ["e"] * 3, ["delivery_id"] * 3, ["not_required"] * 3),
    *(["queued"] * 3, [], [200] * 3, [], [], [uid(1)] * 3, [uid(1)] * 3, ["trigger_owner"] * 3),
)

# A batch of 100 runs under one ruling, whose lease is lost: what it looks at is looked at in any case.
_RUNS, _ONE = range(1, 101), [uid(1)]
DISPATCHED: tuple[object, ...] = (
    *(
        [*_RUNS],
        [uid(n) for n in _RUNS],
        [1] * 100,
        *([[uid(n) for n in _RUNS]] * 2),
        *([["t"] * 100] * 3),
        [1] * 100,
        [1] * 100,
    ),
    *(
        _ONE,
        _ONE,
        _ONE,
        _ONE,
        _ONE,
        _ONE,
        ["rule_owner"],
        [None],
        [None],
        ["agent"],
        _ONE,
        _ONE,
        ["AUT"],
        [1],
        [0],
    ),
    *("a", "b", 3, 60.0, [], []),
)

# At most so many rows looked at: what is due or asked for, with some room for how a plan finds it.
HOT: dict[str, tuple[str, str, tuple[object, ...], int]] = {
    "claim of the dispatcher": (
        "pending",
        "claim",
        (0, 1 << 60, 100, 1 << 20, uid(1), 30.0, 60, [], None, 300, 60),
        1000,
    ),
    "claim of undecided deliveries": ("undecided", "claim", (50, 1 << 20, uid(1), 30.0), 200),
    "what tokens lead to": ("webhook_targets", "find_targets", ([b"7", b"8", b"unknown"],), 20),
    "webhooks that are written": ("deliveries", "insert_deliveries", _TWO_NEW_ONE_REPEATED, 10),
    "webhooks that may be written": ("deliveries", "find_written", ([uid(7), uid(3_000_000)],), 2),
    "webhooks that came before": ("deliveries", "find_slots", (_HOOKS, ["k"] * 3), 6),
    "repeats to count": ("deliveries", "count_attempts", ([uid(7), uid(8)], [1, 2]), 6),
    "claim past a flood": (
        "pending",
        "claim",
        (0, 500, 100, 1 << 20, uid(1), 30.0, 60, [uid(2)], None, 300, 60),
        1000,
    ),
    "times for a flood": (
        "pending",
        "claim",
        (0, 500, 500, 1 << 20, None, 0.0, 60, [], [uid(2)], 300, 60),
        2000,
    ),
    "what a batch becomes": ("dispatch", "dispatch", (uid(1), *DISPATCHED), 1000),
    "entries whose time has come": ("queue", "move_due", (1000,), 100),
    "due triggers": ("schedules", "lock_due", (500, []), 100),
    "the next due trigger": ("schedules", "peek", ("autopilot_schedule_dispatch",), 10),
    "numbers for events": ("events", "sequence", ([uid(1)], BATCH, 0), 10 * BATCH),
    "workspaces with new events": ("events", "open_heads", (BATCH, 0), 2 * BATCH),
    "locks for their numbers": ("events", "lock_heads", (BATCH, 0), 2 * BATCH),
    "workspaces to relay": ("events", "lease_relays", (uid(1), 30.0, 16, UUID(int=0)), 100),
    "what waits": ("backlog", "measure", (100, 45.0), 6500),  # of 5000 workspaces each one's head
    "events for a reader": ("events", "read_after", (uid(1), ROWS // 2, 200), 1000),
    "tasks for a runtime": (
        "runtime_protocol",
        "claim",
        (uid(1), uid(2), uid(3), 100, 30.0, 20, uid(4)),
        1000,
    ),
    "what is at work for a rule": ("facts", "hold_started", ([uid(3)],), 10),
    "lost tasks": ("lease_sweeps", "list_lost_tasks", (None, None, 200), 1000),
    "how a rule fares": ("run_health", "assess", ([uid(3)], 10, 20, 90), 200),
    "rules with ends": ("run_health", "list_rules_with_ends", (AN_HOUR, AN_HOUR + timedelta(hours=1)), 1000),
    "an hour's statistics": ("statistics", "compute_hour", (AN_HOUR,), 1000),
    "where a run waits": ("explain", "find_place", (uid(ROWS // 2),), ROWS // 2 + 100),
    "runs of a minute": (
        "explain",
        "list_other_runs",
        (uid(3), AN_HOUR, AN_HOUR + timedelta(minutes=1), None, 20),
        100,
    ),
    "deliveries beside one": (
        "explain",
        "list_deliveries_near",
        (uid(2), uid(ROWS // 2), A_TIME, "e", "k", 20),
        1000,
    ),
    "who paused a rule": (
        "explain",
        "find_status_change",
        (uid(3), "paused", AN_HOUR + timedelta(days=1)),
        60,
    ),
    "who turned a trigger off": (
        "explain",
        "find_disabling",
        (uid(3), uid(3), AN_HOUR + timedelta(days=1)),
        60,
    ),
    "tasks of a run and its issue": ("explain", "list_tasks", (uid(1), uid(2)), 10),
    "runs in flight beside one": ("explain", "list_live_runs", (uid(3), uid(1), 5), 100),
    "a trigger's plan": ("explain", "find_plan", ("autopilot_schedule_dispatch", uid(3), AN_HOUR), 10),
    "an inbox": ("inbox", "list_items", (uid(1), uid(7), None, False, 21), 50),
}


OF_THE_DISPATCHER = {"pending", "dispatch", "undecided", "queue", "events"}


@pytest.fixture
async def crowded(postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    conn = await asyncpg.connect(postgres_url)
    try:
        await conn.execute(_LEFT_ALONE)
        await conn.execute(_FILL)
        yield conn
    finally:
        await conn.close()


def looked_at(node: dict[str, Any]) -> float:
    """The rows that the scans of a plan read, those that a filter removed included."""
    own = 0.0
    if "Relation Name" in node and "Scan" in node["Node Type"]:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        own = rows * node["Actual Loops"]
    return own + sum(looked_at(child) for child in node.get("Plans", []))


async def test_no_hot_statement_reads_more_than_it_needs(
    crowded: asyncpg.Connection[asyncpg.Record],
) -> None:
    """S7.9, HAZARDS 20: a queue, a calendar or a backlog of any length costs nobody who is not in it."""
    costs: dict[str, float] = {}
    for name, (aggregate, query, arguments, _) in HOT.items():
        transaction = crowded.transaction()
        await transaction.start()
        sql = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {queries.load(aggregate)[query]}"
        plan = json.loads(await crowded.fetchval(sql, *arguments))
        costs[name] = looked_at(plan[0]["Plan"])
        await transaction.rollback()
    assert {name: cost for name, cost in costs.items() if cost > HOT[name][3]} == {}


@pytest.mark.parametrize("session", [{}, SESSION], ids=["any service", "dispatcher"])
async def test_a_plan_made_while_the_tables_were_empty_reads_no_more_once_they_are_full(
    postgres_url: str, session: dict[str, str]
) -> None:
    """Plans are kept for long: until the first ANALYZE a new database would be read from end to end by every batch."""
    config = CommonConfig(database_url=Secret(postgres_url))
    patient = {**session, "statement_timeout": "100000"}  # the tables are filled in a few large statements
    hot = {name: case for name, case in HOT.items() if session or case[0] not in OF_THE_DISPATCHER}
    async with (
        Database.configured(config, name="hot", settings=patient, command_timeout_s=150.0) as database,
        database.connection() as conn,
    ):
        await conn.execute(_LEFT_ALONE)
        await conn.execute("SET plan_cache_mode = force_generic_plan")
        for number, (aggregate, query, arguments, _) in enumerate(hot.values()):
            await conn.execute(f"PREPARE hot_{number} AS {queries.load(aggregate)[query]}")
            await conn.execute(f"EXPLAIN EXECUTE hot_{number}({literals(arguments)})")
        await conn.execute(_FILL.replace("ANALYZE;", ""))
        costs: dict[str, float] = {}
        for number, (name, (_, _, arguments, _)) in enumerate(hot.items()):
            transaction = conn.transaction()
            await transaction.start()
            explain = (
                f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE hot_{number}({literals(arguments)})"
            )
            costs[name] = looked_at(json.loads(await conn.fetchval(explain))[0]["Plan"])
            await transaction.rollback()
    assert {name: cost for name, cost in costs.items() if cost > HOT[name][3]} == {}


def literals(arguments: Sequence[object]) -> str:
    """Arguments as SQL that takes the type it is used as."""
    return ", ".join(_literal(each) for each in arguments)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return "'" + _text(value).replace("'", "''") + "'"


def _text(value: object) -> str:
    if isinstance(value, list):
        quoted = (f'"{_text(each)}"' if each is not None else "NULL" for each in value)
        return "{" + ", ".join(quoted) + "}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)
