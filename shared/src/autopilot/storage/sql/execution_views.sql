-- name: find_place
-- Where in the list an execution stands.
SELECT plan_time, id FROM sys_cron_executions WHERE id = $1;

-- name: find_autopilot
-- The rule of a trigger, of a deleted one too: its history stays.
SELECT autopilot_id FROM autopilot_trigger WHERE workspace_id = $1 AND id = $2;

-- name: list_of_triggers
-- The newest plans of a workspace's triggers, deleted ones too, or of one of them: a page at most is read of each.
SELECT e.id, e.job_name, e.scope_kind, e.scope_id, t.autopilot_id, e.plan_time, e.state, e.attempts, e.max_attempts, e.next_retry_at,
       e.runner_id, e.heartbeat_at, e.stale_at, e.result, e.error_code, e.error_message, e.started_at, e.finished_at
  FROM autopilot_trigger t
 CROSS JOIN LATERAL (
        SELECT x.id, x.job_name, x.scope_kind, x.scope_id, x.plan_time, x.state, x.attempts, x.max_attempts, x.next_retry_at, x.runner_id,
               x.heartbeat_at, x.stale_at, x.result, x.error_code, x.error_message, x.started_at, x.finished_at
          FROM sys_cron_executions x
         WHERE x.job_name = $2 AND x.scope_kind = 'trigger' AND x.scope_id = t.id::text
           AND x.plan_time <= $4 AND (x.plan_time, x.id) < ($4, $5) AND ($6::text IS NULL OR x.state = $6)
         ORDER BY x.plan_time DESC, x.id DESC
         LIMIT $7) e
 WHERE t.workspace_id = $1 AND ($3::uuid IS NULL OR t.id = $3)
 ORDER BY e.plan_time DESC, e.id DESC
 LIMIT $7;

-- name: list_failed_of_triggers
-- The same for plans that failed, which are few among many: they have an index of their own.
SELECT e.id, e.job_name, e.scope_kind, e.scope_id, t.autopilot_id, e.plan_time, e.state, e.attempts, e.max_attempts, e.next_retry_at,
       e.runner_id, e.heartbeat_at, e.stale_at, e.result, e.error_code, e.error_message, e.started_at, e.finished_at
  FROM autopilot_trigger t
  JOIN sys_cron_executions e ON e.scope_kind = 'trigger' AND e.scope_id = t.id::text AND e.state = 'FAILED' AND e.job_name = $2
 WHERE t.workspace_id = $1 AND ($3::uuid IS NULL OR t.id = $3)
   AND e.plan_time <= $4 AND (e.plan_time, e.id) < ($4, $5)
 ORDER BY e.plan_time DESC, e.id DESC
 LIMIT $6;

-- name: list_of_jobs
-- The newest plans of the housekeeping jobs, or of one job or scope: a page at most is read of each job. Their names are found by a probe
-- of the index each. They work for all workspaces at once, so what came of them is not shown.
WITH RECURSIVE job AS (
    (SELECT x.job_name AS name FROM sys_cron_executions x WHERE x.scope_kind <> 'trigger' ORDER BY x.job_name LIMIT 1)
    UNION ALL
    SELECT (SELECT x.job_name FROM sys_cron_executions x
             WHERE x.scope_kind <> 'trigger' AND x.job_name > job.name ORDER BY x.job_name LIMIT 1)
      FROM job WHERE job.name IS NOT NULL)
SELECT e.id, e.job_name, e.scope_kind, e.scope_id, NULL::uuid AS autopilot_id, e.plan_time, e.state, e.attempts, e.max_attempts,
       e.next_retry_at, e.runner_id, e.heartbeat_at, e.stale_at, NULL::jsonb AS result, e.error_code, NULL::text AS error_message,
       e.started_at, e.finished_at
  FROM job
 CROSS JOIN LATERAL (
        SELECT x.id, x.job_name, x.scope_kind, x.scope_id, x.plan_time, x.state, x.attempts, x.max_attempts, x.next_retry_at, x.runner_id,
               x.heartbeat_at, x.stale_at, x.error_code, x.started_at, x.finished_at
          FROM sys_cron_executions x
         WHERE x.scope_kind <> 'trigger' AND x.job_name = job.name
           AND x.plan_time <= $3 AND (x.plan_time, x.id) < ($3, $4) AND ($5::text IS NULL OR x.state = $5)
           AND ($2::text IS NULL OR x.scope_id = $2)
         ORDER BY x.plan_time DESC, x.id DESC
         LIMIT $6) e
 WHERE $1::text IS NULL OR job.name = $1
 ORDER BY e.plan_time DESC, e.id DESC
 LIMIT $6;
