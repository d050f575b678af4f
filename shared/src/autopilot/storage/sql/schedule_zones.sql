-- name: list_outdated
-- Live schedules whose next occurrence was computed with older zone data than ours, those already due left alone, and those that were stopped
-- although our data may know their zone (a replica with older data did not); in id order from an id on.
-- Of a version its numbers count: what a package release appends (2021.2.post0) says nothing of the data.
SELECT t.id, t.cron, t.timezone, t.next_run_at, t.schedule_rev, clock_timestamp() AS now
  FROM autopilot_trigger t
 CROSS JOIN LATERAL (
    SELECT string_to_array(substring(t.tzdata_version FROM '^[0-9]+(?:\.[0-9]+)*'), '.')::int[] AS theirs,
           string_to_array(substring($1::text FROM '^[0-9]+(?:\.[0-9]+)*'), '.')::int[] AS ours) v
 WHERE ((t.next_run_at > clock_timestamp() AND v.theirs < v.ours)
        OR (t.schedule_error IS NOT NULL AND t.enabled AND t.deleted_at IS NULL AND v.theirs <= v.ours
            AND EXISTS (SELECT 1 FROM autopilot a WHERE a.id = t.autopilot_id AND a.status = 'active')))
   AND t.id > $2
 ORDER BY t.id
 LIMIT $3;

-- name: recompute
-- Next occurrences by newer zone data, never over an edit or an occurrence that has become due meanwhile; a locked row comes again later.
WITH held AS (
    SELECT t.id, n.next_run_at, n.error
      FROM unnest($2::uuid[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::text[])
        AS n (id, schedule_rev, was, next_run_at, error)
      JOIN autopilot_trigger t ON t.id = n.id AND t.schedule_rev = n.schedule_rev AND t.next_run_at IS NOT DISTINCT FROM n.was
     WHERE t.next_run_at > clock_timestamp() OR t.schedule_error IS NOT NULL
     ORDER BY t.id
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE autopilot_trigger t
   SET next_run_at = h.next_run_at, schedule_error = h.error, tzdata_version = $1
  FROM held h
 WHERE t.id = h.id
RETURNING t.id;
