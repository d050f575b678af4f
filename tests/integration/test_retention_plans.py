"""Retention finds what is old by index, however much history there is: no scan of a table, no more rows than it asks for (HAZARDS 30)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import pytest

from autopilot.storage import queries

ROWS: Final = 20_000  # one every 36 minutes of 500 days
PAGE: Final = 200
KEEP: Final = timedelta(days=400)
HISTORY: Final = {
    "autopilot_run",
    "agent_task",
    "issue",
    "webhook_delivery",
    "webhook_body",
    "webhook_dedupe",
    "sys_cron_executions",
    "run_event",
    "run_stats_hourly",
    "task_output",
    "inbox_item",
}

_AT = f"now() - (500 * ({ROWS} - i)::float8 / {ROWS}) * interval '1 day'"
_FILL = f"""
SET session_replication_role = replica;
CREATE TABLE n AS SELECT i, {_AT} AS at, (left(uuid7_floor({_AT})::text, 24) || lpad(to_hex(i), 12, '0'))::uuid AS id
  FROM generate_series(1, {ROWS}) i;
ANALYZE n;
INSERT INTO issue (id, workspace_id, number, title, body, status, creator_type, creator_id, origin_autopilot_id, origin_run_id, closed_at)
SELECT id, id, i, 't', 'b', 'done', 'user', id, id, id, at FROM n;
INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status, headers, response_status,
       response_body, run_id, reason_code, received_at, last_attempt_at, replayed_from, replayed_by)
SELECT id, id, id, id, 'generic', 'push', 'not_required', CASE WHEN i % 10 = 0 THEN 'ignored' ELSE 'dispatched' END, '{{}}', 200, '{{}}',
       CASE WHEN i % 10 > 0 THEN id END, CASE WHEN i % 10 = 0 THEN 'event_filtered' END, at, at,
       CASE WHEN i % 1000 = 1 THEN gen_random_uuid() END, CASE WHEN i % 1000 = 1 THEN id END FROM n;
INSERT INTO webhook_body (delivery_id, body) SELECT id, '{{}}' FROM n;
INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id, body_sha) SELECT id, 'k', id, sha256('x') FROM n;
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
       webhook_delivery_id, issue_id, task_id, accountable_id, attribution_source, started_at, completed_at, created_at)
SELECT id, id, id, id, 'webhook', 'completed', 'create_issue', id, 1, id, id, id, id, 'rule_owner', at, at, at FROM n;
INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, run_id, prompt, status, finished_at)
SELECT id, id, id, id, id, 'p', 'completed', at FROM n;
INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id, lease_token,
       stale_at, finished_at, started_at)
SELECT id, 'j', 'global', (i % 100)::text, at, 'SUCCESS', 1, true, id, id, at, at, at FROM n;
INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
SELECT '{UUID(int=1)}', i, id, id, id, 'run.done', '{{}}', at FROM n;
INSERT INTO event_head (workspace_id, last_seq, relayed_seq) SELECT '{UUID(int=1)}', {ROWS}, {ROWS};
INSERT INTO run_stats_hourly (workspace_id, autopilot_id, hour) SELECT id, id, at FROM n;
INSERT INTO task_output (task_id, attempt, place, text, created_at) SELECT id, 1, p, 'x', at FROM n, generate_series(1, 3) p;
INSERT INTO inbox_item (id, workspace_id, user_id, kind, title, created_at) SELECT id, id, id, 'k', 't', at FROM n;
SET session_replication_role = origin;
ANALYZE;
"""


@pytest.fixture
async def crowded(postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    conn = await asyncpg.connect(postgres_url)
    try:
        await conn.execute(_FILL)
        yield conn
    finally:
        await conn.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def looked_at(plan: dict[str, Any]) -> int:
    """The rows that scans of history read, those that a filter removed included."""
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes(plan)
        if node.get("Relation Name") in HISTORY and "Scan" in node["Node Type"]
    )


async def test_every_statement_of_retention_goes_by_index(
    crowded: asyncpg.Connection[asyncpg.Record],
) -> None:
    """Two thirds of the way: what is old has 4,000 rows, a page 200 of them, whatever else there is."""
    sql = queries.load("retention")
    oldest = [row["id"] for row in await crowded.fetch("SELECT id FROM n ORDER BY id LIMIT $1", PAGE)]
    after, seqs = UUID(int=0), list(range(1, PAGE + 1))
    arguments: dict[str, tuple[object, ...]] = {
        "find_old_runs": (after, KEEP, PAGE),
        "lock_runs": (oldest, KEEP),
        "lock_deliveries_of_runs": (oldest, KEEP),
        "decide_runs": (oldest, oldest),
        "delete_runs": (oldest, oldest),
        "find_old_deliveries": (after, KEEP, PAGE),
        "lock_deliveries": (oldest, KEEP),
        "delete_deliveries": (oldest,),
        "find_old_bodies": (after, KEEP, PAGE),
        "lock_deliveries_of_bodies": (oldest, KEEP),
        "delete_bodies": (oldest,),
        "find_old_outputs": (after, KEEP, PAGE),
        "delete_outputs": (oldest, KEEP),
        "find_old_items": (after, KEEP, PAGE),
        "delete_items": (oldest, KEEP),
        "find_old_executions": (after, KEEP, PAGE),
        "delete_executions": (oldest, KEEP),
        "find_workspace_with_events": (after,),
        "find_old_events": (UUID(int=1), 0, KEEP, PAGE),
        "delete_events": (UUID(int=1), seqs),
        "delete_statistics": (datetime.min.replace(tzinfo=UTC), KEEP, PAGE),
    }
    assert set(arguments) == set(sql), "every statement is looked at"
    scanned: dict[str, set[str]] = {}
    costs: dict[str, int] = {}
    for name, given in arguments.items():
        transaction = crowded.transaction()
        await transaction.start()
        explained = await crowded.fetchval(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql[name]}", *given)
        await transaction.rollback()
        plan = json.loads(explained)[0]["Plan"]
        costs[name] = looked_at(plan)
        tables = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
        if tables & HISTORY:
            scanned[name] = tables & HISTORY
    assert scanned == {}
    assert {name: cost for name, cost in costs.items() if cost > 8 * PAGE} == {}
    assert costs["find_old_runs"] == PAGE, "the example is what it says"
