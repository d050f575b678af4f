"""Runs that ended in the past, written straight into history for tests that look back."""

from __future__ import annotations

from tests.support.dispatching import execute

from autopilot.domain.ids import AutopilotId, RunId, TriggerId
from autopilot.kit.ids import uuid7
from autopilot.storage.database import Database

_INSERT = """
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
       planned_at, task_id, originator_id, accountable_id, attribution_source, reason_code, failure_reason, created_at, started_at,
       completed_at)
SELECT $1, a.workspace_id, a.id, $6, $4, $3, 'run_only', a.version_id, a.version,
       CASE $4 WHEN 'schedule' THEN t.ended END, CASE $3 WHEN 'completed' THEN gen_random_uuid() END,
       CASE $4 WHEN 'manual' THEN a.creator_id END, a.creator_id, CASE $4 WHEN 'manual' THEN 'direct_human' ELSE 'rule_owner' END,
       $5, CASE WHEN $5::text IS NOT NULL THEN 'because' END, t.ended, CASE $3 WHEN 'completed' THEN t.ended END, t.ended
  FROM autopilot a, LATERAL (SELECT clock_timestamp() - make_interval(secs => $7) AS ended) t
 WHERE a.id = $2
"""
CODES = {"completed": None, "failed": "task_failed", "skipped": "runtime_offline"}


async def end_run(
    database: Database,
    autopilot_id: AutopilotId,
    status: str,
    *,
    ago_s: float = 0,
    source: str = "api",
    code: str | None = None,
    trigger_id: TriggerId | None = None,
) -> RunId:
    """A run that ended so many seconds ago, with the usual reason of its status unless another is given."""
    run_id = RunId(uuid7())
    reason = code or CODES[status]
    await execute(database, _INSERT, run_id, autopilot_id, status, source, reason, trigger_id, float(ago_s))
    return run_id


async def end_runs(
    database: Database, autopilot_id: AutopilotId, statuses: str, *, ago_s: float = 60
) -> list[RunId]:
    """Runs a millisecond apart, oldest first, the first so many seconds ago: `f` failed, `c` completed, `s` skipped."""
    words = {"f": "failed", "c": "completed", "s": "skipped"}
    return [
        await end_run(database, autopilot_id, words[letter], ago_s=ago_s - index / 1000)
        for index, letter in enumerate(statuses)
    ]


async def resume_long_ago(database: Database, autopilot_id: AutopilotId, *, days: float = 30) -> None:
    """Let a rule have been active for so many days."""
    await execute(
        database,
        "UPDATE autopilot SET resumed_at = clock_timestamp() - make_interval(secs => $2) WHERE id = $1",
        *(autopilot_id, days * 86400.0),
    )
