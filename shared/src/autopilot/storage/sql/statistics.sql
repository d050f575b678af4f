-- name: compute_hour
-- The runs that ended in an hour by rule and outcome. Computed again it writes the same, so only what differs is written; in key order,
-- so that two who compute the same hour do not deadlock.
INSERT INTO run_stats_hourly AS s (workspace_id, autopilot_id, hour, completed, failed, skipped)
SELECT r.workspace_id, r.autopilot_id, $1::timestamptz, count(*) FILTER (WHERE r.status = 'completed'),
       count(*) FILTER (WHERE r.status = 'failed'), count(*) FILTER (WHERE r.status = 'skipped')
  FROM autopilot_run r
 WHERE r.completed_at >= $1 AND r.completed_at < $1 + interval '1 hour'
 GROUP BY r.workspace_id, r.autopilot_id
 ORDER BY r.autopilot_id
    ON CONFLICT (autopilot_id, hour) DO UPDATE
   SET completed = EXCLUDED.completed, failed = EXCLUDED.failed, skipped = EXCLUDED.skipped
 WHERE (s.completed, s.failed, s.skipped) IS DISTINCT FROM (EXCLUDED.completed, EXCLUDED.failed, EXCLUDED.skipped)
RETURNING s.autopilot_id;
