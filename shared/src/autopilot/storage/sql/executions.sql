-- name: claim
-- One statement, one winner: a new plan, or one whose retry is due, or one that stands stale and may be entered again (S7.3). The token
-- rotates, the row id stays. The subquery reads what the row was before: it sees the statement's own snapshot.
INSERT INTO sys_cron_executions AS e (id, job_name, scope_kind, scope_id, plan_time, state, attempts, max_attempts, reentry, runner_id,
       lease_token, heartbeat_at, stale_at, started_at)
SELECT $1, $2, $3, $4, $5, 'RUNNING', 1, $6, $7, $8, $9, n.at, n.at + $10::interval, n.at
  FROM (SELECT clock_timestamp() AS at) n
    ON CONFLICT ON CONSTRAINT sys_cron_executions_plan_unique DO UPDATE
   SET state = 'RUNNING', attempts = e.attempts + 1, runner_id = EXCLUDED.runner_id, lease_token = EXCLUDED.lease_token,
       heartbeat_at = clock_timestamp(), stale_at = clock_timestamp() + $10::interval, started_at = clock_timestamp(),
       finished_at = NULL, next_retry_at = NULL, result = NULL, error_code = NULL, error_message = NULL
 WHERE (e.state = 'FAILED' AND e.next_retry_at <= clock_timestamp())
    OR (e.state = 'RUNNING' AND e.reentry AND e.attempts < e.max_attempts AND e.stale_at <= clock_timestamp())
RETURNING e.id, e.attempts, e.max_attempts,
          (SELECT p.state FROM sys_cron_executions p
            WHERE p.job_name = $2 AND p.scope_kind = $3 AND p.scope_id = $4 AND p.plan_time = $5) AS was;

-- name: heartbeat
-- No row: the lease is lost. One that ran out and that nobody took is still held.
UPDATE sys_cron_executions
   SET heartbeat_at = clock_timestamp(), stale_at = clock_timestamp() + $3::interval
 WHERE id = $1 AND lease_token = $2 AND state = 'RUNNING'
RETURNING id;

-- name: succeed
-- By token: with an old one it changes nothing (S7.4).
UPDATE sys_cron_executions
   SET state = 'SUCCESS', result = $3, finished_at = greatest(clock_timestamp(), started_at)
 WHERE id = $1 AND lease_token = $2 AND state = 'RUNNING'
RETURNING id;

-- name: fail
-- By token. With attempts left and a delay it is tried again after that; else it is final.
UPDATE sys_cron_executions
   SET state = 'FAILED', error_code = $3, error_message = $4, finished_at = greatest(clock_timestamp(), started_at),
       next_retry_at = CASE WHEN attempts < max_attempts THEN clock_timestamp() + $5::interval END
 WHERE id = $1 AND lease_token = $2 AND state = 'RUNNING'
RETURNING id, job_name, scope_kind, scope_id, plan_time, state, attempts, max_attempts, next_retry_at, error_code, error_message;

-- name: list_stale
-- What the sweep looks at: a job's executions whose runner has not been heard of.
SELECT id FROM sys_cron_executions
 WHERE state = 'RUNNING' AND stale_at <= statement_timestamp() AND job_name = $1
 ORDER BY stale_at
 LIMIT $2;

-- name: fail_stale
-- Proved again under the row's lock: a heartbeat may have come. Retried at once where re-entry is allowed and attempts remain (S7.5).
UPDATE sys_cron_executions
   SET state = 'FAILED', error_code = 'stale_timeout', error_message = 'the runner was not heard of in time',
       finished_at = greatest(clock_timestamp(), started_at),
       next_retry_at = CASE WHEN reentry AND attempts < max_attempts THEN clock_timestamp() END
 WHERE id = $1 AND state = 'RUNNING' AND stale_at <= clock_timestamp()
RETURNING id, job_name, scope_kind, scope_id, plan_time, state, attempts, max_attempts, next_retry_at, error_code, error_message;

-- name: list_retries
-- A job's failed plans whose retry is due, oldest plan first, whatever newer plans there are (S7.6).
SELECT scope_kind, scope_id, plan_time FROM sys_cron_executions
 WHERE next_retry_at <= statement_timestamp() AND job_name = $1
 ORDER BY plan_time
 LIMIT $2;

-- name: read_span
-- The database's time, and a scope's oldest and newest plan.
SELECT clock_timestamp() AS now, min(plan_time) AS oldest, max(plan_time) AS newest
  FROM sys_cron_executions
 WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3;

-- name: list_plan_times
-- Which plans of a scope have a row, from a time on.
SELECT plan_time FROM sys_cron_executions
 WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3 AND plan_time >= $4;

-- name: request_rerun
-- One more attempt for a plan that has failed, now (S7.16).
UPDATE sys_cron_executions
   SET next_retry_at = clock_timestamp(), max_attempts = greatest(max_attempts, attempts + 1)
 WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3 AND plan_time = $4 AND state = 'FAILED'
RETURNING id;

-- name: find_state
-- The state of one plan.
SELECT state FROM sys_cron_executions WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3 AND plan_time = $4;
