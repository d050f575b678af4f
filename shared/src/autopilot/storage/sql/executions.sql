-- name: claim
-- One statement for many plans, one winner for each: a new plan, or one whose retry is due, or one that stands stale and may be entered
-- again (S7.3). The token rotates, the row id stays; a claim whose answer was lost finds its own token and costs no attempt. The subquery
-- reads what the row was before: it sees the statement's own snapshot. Every statement here takes its rows in the order of the plans' keys.
INSERT INTO sys_cron_executions AS e (id, job_name, scope_kind, scope_id, plan_time, state, attempts, max_attempts, reentry, runner_id,
       lease_token, heartbeat_at, stale_at, started_at)
SELECT c.id, c.job_name, c.scope_kind, c.scope_id, c.plan_time, 'RUNNING', 1, c.max_attempts, c.reentry, c.runner_id, c.token, n.at,
       n.at + c.stale_after, n.at
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::int[], $7::bool[], $8::uuid[], $9::uuid[],
              $10::interval[])
    AS c (id, job_name, scope_kind, scope_id, plan_time, max_attempts, reentry, runner_id, token, stale_after)
 CROSS JOIN (SELECT clock_timestamp() AS at) n
 ORDER BY c.job_name, c.scope_kind, c.scope_id, c.plan_time
    ON CONFLICT ON CONSTRAINT sys_cron_executions_plan_unique DO UPDATE
   SET state = 'RUNNING', attempts = e.attempts + CASE WHEN e.lease_token = EXCLUDED.lease_token THEN 0 ELSE 1 END,
       runner_id = EXCLUDED.runner_id, lease_token = EXCLUDED.lease_token, heartbeat_at = clock_timestamp(),
       stale_at = clock_timestamp() + (EXCLUDED.stale_at - EXCLUDED.heartbeat_at), started_at = clock_timestamp(),
       finished_at = NULL, next_retry_at = NULL, result = NULL, error_code = NULL, error_message = NULL
 WHERE (e.state = 'FAILED' AND e.next_retry_at <= clock_timestamp())
    OR (e.state = 'RUNNING' AND e.reentry AND e.attempts < e.max_attempts AND e.stale_at <= clock_timestamp())
    OR (e.state = 'RUNNING' AND e.lease_token = EXCLUDED.lease_token)
RETURNING e.lease_token, e.id, e.attempts, e.max_attempts,
          (SELECT p.state FROM sys_cron_executions p
            WHERE p.job_name = e.job_name AND p.scope_kind = e.scope_kind AND p.scope_id = e.scope_id AND p.plan_time = e.plan_time) AS was;

-- name: heartbeat
-- Those that are not returned have lost their lease. One that ran out and that nobody took is still held.
WITH held AS MATERIALIZED (
    SELECT e.id, h.stale_after
      FROM unnest($1::uuid[], $2::uuid[], $3::interval[]) AS h (id, token, stale_after)
      JOIN sys_cron_executions e ON e.id = h.id AND e.lease_token = h.token AND e.state = 'RUNNING'
     ORDER BY e.job_name, e.scope_kind, e.scope_id, e.plan_time
       FOR NO KEY UPDATE OF e)
UPDATE sys_cron_executions e
   SET heartbeat_at = clock_timestamp(), stale_at = clock_timestamp() + held.stale_after
  FROM held
 WHERE e.id = held.id
RETURNING e.lease_token;

-- name: succeed
-- By token: with an old one it changes nothing (S7.4). A result that is too large gives way to a note.
WITH held AS MATERIALIZED (
    SELECT e.id, s.result::jsonb AS result
      FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS s (id, token, result)
      JOIN sys_cron_executions e ON e.id = s.id AND e.lease_token = s.token AND e.state = 'RUNNING'
     ORDER BY e.job_name, e.scope_kind, e.scope_id, e.plan_time
       FOR NO KEY UPDATE OF e)
UPDATE sys_cron_executions e
   SET state = 'SUCCESS', finished_at = greatest(clock_timestamp(), e.started_at),
       result = CASE WHEN octet_length(held.result::text) > 16384 THEN '{"omitted": "the result is larger than 16 KiB"}'
                     ELSE held.result END
  FROM held
 WHERE e.id = held.id
RETURNING e.lease_token;

-- name: fail
-- By token. With attempts left and a delay a plan is tried again after that; else it is final.
WITH held AS MATERIALIZED (
    SELECT e.id, f.code, f.message, f.retry_after
      FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::interval[]) AS f (id, token, code, message, retry_after)
      JOIN sys_cron_executions e ON e.id = f.id AND e.lease_token = f.token AND e.state = 'RUNNING'
     ORDER BY e.job_name, e.scope_kind, e.scope_id, e.plan_time
       FOR NO KEY UPDATE OF e)
UPDATE sys_cron_executions e
   SET state = 'FAILED', error_code = held.code, error_message = held.message, finished_at = greatest(clock_timestamp(), e.started_at),
       next_retry_at = CASE WHEN e.attempts < e.max_attempts THEN clock_timestamp() + held.retry_after END
  FROM held
 WHERE e.id = held.id
RETURNING e.lease_token, e.id, e.job_name, e.scope_kind, e.scope_id, e.plan_time, e.attempts, e.max_attempts, e.next_retry_at,
          e.error_code, e.error_message;

-- name: list_stale
-- What the sweep looks at: a job's executions whose runner has not been heard of, a page behind the last one seen.
SELECT id, stale_at FROM sys_cron_executions
 WHERE state = 'RUNNING' AND stale_at <= statement_timestamp() AND job_name = $1
   AND ($2::timestamptz IS NULL OR (stale_at, id) > ($2::timestamptz, $3::uuid))
 ORDER BY stale_at, id
 LIMIT $4;

-- name: fail_stale
-- Proved again under the rows' locks: a heartbeat may have come. Retried at once where re-entry is allowed and attempts remain (S7.5).
WITH stale AS MATERIALIZED (
    SELECT id FROM sys_cron_executions
     WHERE id = ANY($1::uuid[]) AND state = 'RUNNING' AND stale_at <= clock_timestamp()
     ORDER BY job_name, scope_kind, scope_id, plan_time
       FOR NO KEY UPDATE)
UPDATE sys_cron_executions e
   SET state = 'FAILED', error_code = 'stale_timeout', error_message = 'the runner was not heard of in time',
       finished_at = greatest(clock_timestamp(), e.started_at),
       next_retry_at = CASE WHEN e.reentry AND e.attempts < e.max_attempts THEN clock_timestamp() END
  FROM stale
 WHERE e.id = stale.id
RETURNING e.id, e.job_name, e.scope_kind, e.scope_id, e.plan_time, e.attempts, e.max_attempts, e.next_retry_at, e.error_code,
          e.error_message;

-- name: read_agenda
-- The database's time, and when the next retry of a job is due or the next lease runs out, of those that lie ahead.
SELECT n.at AS now,
       least((SELECT next_retry_at FROM sys_cron_executions
               WHERE job_name = $1 AND next_retry_at IS NOT NULL AND next_retry_at > n.at ORDER BY next_retry_at LIMIT 1),
             (SELECT stale_at FROM sys_cron_executions
               WHERE job_name = $1 AND state = 'RUNNING' AND stale_at > n.at ORDER BY stale_at LIMIT 1)) AS next_at
  FROM (SELECT statement_timestamp() AS at) n;

-- name: list_retries
-- A job's failed plans whose retry is due, oldest plan first, whatever newer plans there are (S7.6). The scopes that the caller is busy
-- with are left out, so that a scope that hangs with many plans does not stand in front of the others (S7.7).
SELECT e.scope_kind, e.scope_id, e.plan_time FROM sys_cron_executions e
 WHERE e.next_retry_at <= statement_timestamp() AND e.job_name = $1
   AND NOT EXISTS (SELECT 1 FROM unnest($2::text[], $3::text[]) AS b (kind, id) WHERE b.kind = e.scope_kind AND b.id = e.scope_id)
 ORDER BY e.plan_time
 LIMIT $4;

-- name: read_spans
-- The database's time, and the oldest and newest plan of each of these scopes: the two ends of the unique index, for each.
SELECT s.kind, s.id, n.at AS now, first.plan_time AS oldest, last.plan_time AS newest
  FROM unnest($2::text[], $3::text[]) AS s (kind, id)
 CROSS JOIN (SELECT clock_timestamp() AS at) n
  LEFT JOIN LATERAL (SELECT e.plan_time FROM sys_cron_executions e
                      WHERE e.job_name = $1 AND e.scope_kind = s.kind AND e.scope_id = s.id
                      ORDER BY e.plan_time LIMIT 1) first ON true
  LEFT JOIN LATERAL (SELECT e.plan_time FROM sys_cron_executions e
                      WHERE e.job_name = $1 AND e.scope_kind = s.kind AND e.scope_id = s.id
                      ORDER BY e.plan_time DESC LIMIT 1) last ON true;

-- name: list_plan_times
-- Which plans of these scopes have a row, from a time on.
SELECT e.scope_kind, e.scope_id, e.plan_time
  FROM unnest($2::text[], $3::text[]) AS s (kind, id)
  JOIN sys_cron_executions e ON e.job_name = $1 AND e.scope_kind = s.kind AND e.scope_id = s.id AND e.plan_time >= $4;

-- name: request_rerun
-- One more attempt for a plan that has failed, now (S7.16).
UPDATE sys_cron_executions
   SET next_retry_at = clock_timestamp(), max_attempts = greatest(max_attempts, attempts + 1)
 WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3 AND plan_time = $4 AND state = 'FAILED'
RETURNING id;

-- name: find_state
-- The state of one plan.
SELECT state FROM sys_cron_executions WHERE job_name = $1 AND scope_kind = $2 AND scope_id = $3 AND plan_time = $4;
