-- name: peek
-- How long until the next occurrence and the next retry, by the database's clock: one row of each index, whatever exists (S7.9).
SELECT extract(epoch FROM (SELECT next_run_at FROM autopilot_trigger
                            WHERE next_run_at IS NOT NULL ORDER BY next_run_at LIMIT 1) - clock_timestamp())::float8 AS plan_in_s,
       extract(epoch FROM least(
           (SELECT next_retry_at FROM sys_cron_executions
             WHERE next_retry_at IS NOT NULL AND job_name = $1 ORDER BY next_retry_at LIMIT 1),
           (SELECT stale_at FROM sys_cron_executions
             WHERE state = 'RUNNING' AND job_name = $1 ORDER BY stale_at LIMIT 1)) - clock_timestamp())::float8 AS retry_in_s;

-- name: lock_guarded
-- Level 2 of the lock order: rules whose policy looks at what is in flight, as many as a batch of due triggers belongs to. One that is
-- locked is passed over for a later one, never waited for, so that four schedulers find enough in what is due. The array makes it a
-- look-up by id, however many rules there are.
WITH due AS MATERIALIZED (
    SELECT t.autopilot_id, t.next_run_at FROM autopilot_trigger t
     WHERE t.next_run_at <= statement_timestamp() ORDER BY t.next_run_at LIMIT 4 * $1::int
)
SELECT a.id
  FROM unnest(ARRAY(SELECT d.autopilot_id FROM due d GROUP BY d.autopilot_id ORDER BY min(d.next_run_at), d.autopilot_id))
       WITH ORDINALITY AS w (id, place)
  JOIN autopilot a ON a.id = w.id
 WHERE a.overlap_policy <> 'allow'
 ORDER BY w.place
 LIMIT (SELECT ceil($1::numeric * count(DISTINCT d.autopilot_id) / greatest(count(*), 1)) FROM due d)
   FOR NO KEY UPDATE OF a SKIP LOCKED;

-- name: lock_due
-- Level 3: due triggers, longest due first, of rules that allow overlap or that the caller has locked.
SELECT t.id, t.autopilot_id, t.cron, t.timezone, t.catch_up, t.lateness_s, t.next_run_at, t.schedule_rev
  FROM autopilot_trigger t
  JOIN autopilot a ON a.workspace_id = t.workspace_id AND a.id = t.autopilot_id
 WHERE t.next_run_at <= statement_timestamp() AND (a.overlap_policy = 'allow' OR a.id = ANY($2::uuid[]))
 ORDER BY t.next_run_at
 LIMIT $1
   FOR NO KEY UPDATE OF t SKIP LOCKED;

-- name: lock_due_again
-- Level 3: those of these triggers that are still due, in id order; their guarded rules are locked by the caller.
SELECT t.id, t.autopilot_id, t.cron, t.timezone, t.catch_up, t.lateness_s, t.next_run_at, t.schedule_rev
  FROM autopilot_trigger t
 WHERE t.id = ANY($1::uuid[]) AND t.next_run_at <= statement_timestamp()
 ORDER BY t.id
   FOR NO KEY UPDATE OF t SKIP LOCKED;

-- name: list_retries
-- Plans that failed and whose retry is due, or whose runner is gone, with the rule of their trigger; looked at without a lock.
SELECT e.id, t.id AS trigger_id, t.autopilot_id
  FROM ((SELECT id, scope_id FROM sys_cron_executions
          WHERE next_retry_at <= statement_timestamp() AND job_name = $1 ORDER BY next_retry_at LIMIT $2)
        UNION ALL
        (SELECT id, scope_id FROM sys_cron_executions
          WHERE state = 'RUNNING' AND stale_at <= statement_timestamp() AND job_name = $1 ORDER BY stale_at LIMIT $2)) e
  LEFT JOIN autopilot_trigger t
         ON t.id = CASE WHEN e.scope_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN e.scope_id::uuid END;

-- name: lock_triggers
-- Level 3, in id order.
SELECT id FROM autopilot_trigger WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_retries
-- Level 4: those of these executions that are still due, with what their trigger and rule are now; the caller has locked the triggers.
SELECT e.id, e.scope_id, e.plan_time, e.schedule_rev, e.attempts, e.max_attempts, (e.result ->> 'missed')::int AS missed,
       coalesce(e.result ->> 'failed_as', '') = 'missed' AS was_missed, t.schedule_rev AS current_rev,
       coalesce(t.enabled AND t.deleted_at IS NULL, false) AS enabled, coalesce(a.status, 'archived') AS status
  FROM sys_cron_executions e
  LEFT JOIN autopilot_trigger t ON t.id = ANY($2::uuid[]) AND t.id::text = e.scope_id
  LEFT JOIN autopilot a ON a.workspace_id = t.workspace_id AND a.id = t.autopilot_id
 WHERE e.id = ANY($1::uuid[])
   AND (e.next_retry_at <= statement_timestamp() OR (e.state = 'RUNNING' AND e.stale_at <= statement_timestamp()))
 ORDER BY e.id
   FOR UPDATE OF e SKIP LOCKED;

-- name: find_plan_runs
-- Runs that these plans have already; a failed one that was never dispatched may be replaced (S7.12).
SELECT r.id, r.trigger_id, r.planned_at, r.status = 'failed' AND r.started_at IS NULL AS replaceable
  FROM unnest($1::uuid[], $2::timestamptz[]) AS p (trigger_id, planned_at)
  JOIN autopilot_run r ON r.trigger_id = p.trigger_id AND r.planned_at = p.planned_at AND r.planned_at IS NOT NULL;

-- name: free_plans
-- The record stays for audit, its plan is free for a clean run.
UPDATE autopilot_run SET planned_at = NULL WHERE id = ANY($1::uuid[]) AND status = 'failed' AND started_at IS NULL;

-- name: record_finished
-- Executions of plans that are settled; a row that is there already had failed, and this was its next attempt.
INSERT INTO sys_cron_executions AS e (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id, lease_token,
       heartbeat_at, stale_at, started_at, finished_at, schedule_rev, result)
SELECT p.id, $1, 'trigger', p.trigger_id::text, p.plan_time, 'SUCCESS', $2, true, $3, $4, n.at, n.at, n.at, n.at, p.schedule_rev,
       jsonb_strip_nulls(jsonb_build_object('outcome', p.outcome, 'run_id', p.run_id, 'code', p.code, 'missed', p.missed))
  FROM unnest($5::uuid[], $6::uuid[], $7::timestamptz[], $8::bigint[], $9::text[], $10::uuid[], $11::text[], $12::int[])
    AS p (id, trigger_id, plan_time, schedule_rev, outcome, run_id, code, missed)
 CROSS JOIN (SELECT clock_timestamp() AS at) n
 ORDER BY p.trigger_id, p.plan_time
    ON CONFLICT ON CONSTRAINT sys_cron_executions_plan_unique DO UPDATE
   SET state = 'SUCCESS', attempts = e.attempts + 1, runner_id = EXCLUDED.runner_id, lease_token = EXCLUDED.lease_token,
       heartbeat_at = EXCLUDED.heartbeat_at, stale_at = EXCLUDED.stale_at, started_at = EXCLUDED.started_at,
       finished_at = EXCLUDED.finished_at, next_retry_at = NULL, error_code = NULL, error_message = NULL, result = EXCLUDED.result
 WHERE e.state <> 'SUCCESS';

-- name: record_failed
-- Executions of plans that failed, each with its next attempt while any is left. `$5` are the waits after the first attempt, the second
-- and so on; the last one serves all further.
INSERT INTO sys_cron_executions AS e (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id, lease_token,
       heartbeat_at, stale_at, started_at, finished_at, schedule_rev, result, error_code, error_message, next_retry_at)
SELECT p.id, $1, 'trigger', p.trigger_id::text, p.plan_time, 'FAILED', $2, true, $3, $4, n.at, n.at, n.at, n.at, p.schedule_rev,
       CASE WHEN p.missed IS NOT NULL THEN jsonb_build_object('failed_as', CASE WHEN p.was_missed THEN 'missed' ELSE 'due' END, 'missed', p.missed) END,
       'handler_error', $6, CASE WHEN $2 > 1 THEN n.at + ($5::interval[])[1] END
  FROM unnest($7::uuid[], $8::uuid[], $9::timestamptz[], $10::bigint[], $11::int[], $12::bool[])
    AS p (id, trigger_id, plan_time, schedule_rev, missed, was_missed)
 CROSS JOIN (SELECT clock_timestamp() AS at) n
 ORDER BY p.trigger_id, p.plan_time
    ON CONFLICT ON CONSTRAINT sys_cron_executions_plan_unique DO UPDATE
   SET state = 'FAILED', attempts = e.attempts + 1, runner_id = EXCLUDED.runner_id, lease_token = EXCLUDED.lease_token,
       heartbeat_at = EXCLUDED.heartbeat_at, stale_at = EXCLUDED.stale_at, started_at = EXCLUDED.started_at,
       finished_at = EXCLUDED.finished_at, error_code = EXCLUDED.error_code, error_message = EXCLUDED.error_message,
       next_retry_at = CASE WHEN e.attempts + 1 < e.max_attempts
                            THEN EXCLUDED.started_at + ($5::interval[])[least(e.attempts + 1, cardinality($5::interval[]))] END
 WHERE e.state <> 'SUCCESS'
RETURNING e.scope_id::uuid AS trigger_id, e.plan_time, e.attempts, e.next_retry_at, (e.result ->> 'missed')::int AS missed;

-- name: postpone_retry
-- A failed plan whose end cannot be written now is tried again later; its attempts are as they were.
UPDATE sys_cron_executions SET next_retry_at = clock_timestamp() + $2::interval
 WHERE id = $1 AND state = 'FAILED' AND attempts < max_attempts;

-- name: advance
-- Triggers move on to their next occurrence, or stop with the error that people will see; never over an edit (schedule_rev).
UPDATE autopilot_trigger t
   SET next_run_at = n.next_run_at, schedule_error = n.error
  FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::text[]) AS n (id, schedule_rev, next_run_at, error)
 WHERE t.id = n.id AND t.schedule_rev = n.schedule_rev;
