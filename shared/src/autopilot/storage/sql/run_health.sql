-- name: read_horizon
-- The database's time, and when the newest successful plan of a job that is one for all began.
SELECT clock_timestamp() AS now,
       (SELECT e.started_at FROM sys_cron_executions e
         WHERE e.job_name = $1 AND e.scope_kind = 'global' AND e.scope_id = 'all' AND e.state = 'SUCCESS'
         ORDER BY e.plan_time DESC
         LIMIT 1) AS began;

-- name: list_rules_with_ends
-- Rules of which a run ended in a span of time, those that people started by hand left out.
SELECT DISTINCT r.workspace_id, r.autopilot_id
  FROM autopilot_run r
 WHERE r.completed_at >= $1 AND r.completed_at < $2 AND r.source <> 'manual';

-- name: assess
-- What the newest runs of active rules say, each question answered by a few entries of one index: the failures since the newest success,
-- the skips since a run last came to work, the failed runs of a week against the completed ones, which are counted no further than the
-- share needs; and whether the newest notices speak of just that. All of it since the rule was last resumed; an issue that people closed
-- or deleted is no failure. A pause counts from when it was told: its run may be older than a success that was told before it.
SELECT a.id AS autopilot_id, a.title, a.creator_id,
       streak.failures,
       coalesce(streak.failed_run,
                (SELECT r.id
                   FROM autopilot_run r
                  WHERE r.autopilot_id = a.id AND r.outcome = 'failed' AND r.source <> 'manual'
                    AND r.completed_at > greatest(a.resumed_at, statement_timestamp() - interval '7 days')
                    AND r.reason_code NOT IN ('issue_cancelled', 'issue_blocked', 'issue_deleted')
                  ORDER BY r.completed_at DESC
                  LIMIT 1)) AS failed_run,
       idle.skips, idle.skipped_run, done.id AS completed_run, failed.week_failed, completed.week_completed,
       coalesce(told.failing_at > since.at, false) AS told_failing,
       coalesce(told.skipping_at > worked.at, false) AS told_skipping,
       coalesce(done.completed_at > told.alarm_at AND (told.recovered_at IS NULL OR told.recovered_at <= told.alarm_at), false) AS recovered
  FROM unnest($1::uuid[]) AS n (id)
  JOIN autopilot a ON a.id = n.id AND a.status = 'active'
  LEFT JOIN LATERAL (
        SELECT r.id, r.completed_at
          FROM autopilot_run r
         WHERE r.autopilot_id = a.id AND r.outcome = 'completed' AND r.source <> 'manual' AND r.completed_at > a.resumed_at
         ORDER BY r.completed_at DESC
         LIMIT 1) done ON true
 CROSS JOIN LATERAL (SELECT greatest(done.completed_at, a.resumed_at) AS at) since
 CROSS JOIN LATERAL (
        SELECT count(*)::int AS failures, (array_agg(x.id ORDER BY x.completed_at DESC, x.id DESC))[1] AS failed_run
          FROM (SELECT r.id, r.completed_at
                  FROM autopilot_run r
                 WHERE r.autopilot_id = a.id AND r.outcome = 'failed' AND r.source <> 'manual' AND r.completed_at > since.at
                   AND r.reason_code NOT IN ('issue_cancelled', 'issue_blocked', 'issue_deleted')
                 ORDER BY r.completed_at DESC
                 LIMIT $2) x) streak
 CROSS JOIN LATERAL (
        SELECT greatest(since.at, max(x.completed_at)) AS at
          FROM (SELECT r.completed_at
                  FROM autopilot_run r
                 WHERE r.autopilot_id = a.id AND r.outcome = 'failed' AND r.source <> 'manual' AND r.completed_at > since.at
                 ORDER BY r.completed_at DESC
                 LIMIT 1) x) worked
 CROSS JOIN LATERAL (
        SELECT count(*)::int AS skips, (array_agg(x.id ORDER BY x.completed_at DESC, x.id DESC))[1] AS skipped_run
          FROM (SELECT r.id, r.completed_at
                  FROM autopilot_run r
                 WHERE r.autopilot_id = a.id AND r.outcome = 'skipped' AND r.source <> 'manual' AND r.completed_at > worked.at
                 ORDER BY r.completed_at DESC
                 LIMIT $3) x) idle
 CROSS JOIN LATERAL (
        SELECT count(*)::int AS week_failed
          FROM autopilot_run r
         WHERE r.autopilot_id = a.id AND r.outcome = 'failed' AND r.source <> 'manual'
           AND r.completed_at > greatest(a.resumed_at, statement_timestamp() - interval '7 days')
           AND r.reason_code NOT IN ('issue_cancelled', 'issue_blocked', 'issue_deleted')) failed
 CROSS JOIN LATERAL (
        SELECT count(*)::int AS week_completed
          FROM (SELECT 1
                  FROM autopilot_run r
                 WHERE r.autopilot_id = a.id AND r.outcome = 'completed' AND r.source <> 'manual'
                   AND r.completed_at > greatest(a.resumed_at, statement_timestamp() - interval '7 days')
                 LIMIT failed.week_failed::bigint * (100 - $4::int) / $4::int + 1) x) completed
 CROSS JOIN LATERAL (
        SELECT max(x.at) FILTER (WHERE x.kind = 'autopilot_failing') AS failing_at,
               max(x.at) FILTER (WHERE x.kind = 'autopilot_skipping') AS skipping_at,
               max(x.at) FILTER (WHERE x.kind = 'autopilot_recovered') AS recovered_at,
               max(x.at) FILTER (WHERE x.kind IN ('autopilot_failing', 'autopilot_paused')) AS alarm_at
          FROM (SELECT k.kind,
                       CASE k.kind WHEN 'autopilot_paused' THEN i.created_at ELSE coalesce(r.completed_at, i.created_at) END AS at
                  FROM unnest(ARRAY['autopilot_failing', 'autopilot_paused', 'autopilot_skipping', 'autopilot_recovered']) AS k (kind)
                 CROSS JOIN LATERAL (
                        SELECT i.run_id, i.created_at
                          FROM inbox_item i
                         WHERE i.autopilot_id = a.id AND i.kind = k.kind AND i.issue_id IS NULL AND i.run_id IS NOT NULL
                         ORDER BY i.created_at DESC
                         LIMIT 1) i
                  LEFT JOIN autopilot_run r ON r.id = i.run_id) x) told;
