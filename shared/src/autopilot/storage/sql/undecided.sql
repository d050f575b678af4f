-- name: claim
-- The oldest free entries of deliveries that nobody has decided on (S9.10), leased in one statement. They have an index of their own, so that
-- runs and they pass each other by. One that was claimed three times without an outcome comes alone.
WITH picked AS MATERIALIZED (
    SELECT q.seq, q.size, q.claims - q.attempts >= 3 AS suspect
      FROM dispatch_queue q
     WHERE q.delivery_id IS NOT NULL AND (q.lease_until IS NULL OR q.lease_until < clock_timestamp())
     ORDER BY q.seq
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), bounded AS (
    SELECT p.seq, p.suspect, row_number() OVER w AS place, sum(p.size) OVER w AS bytes
      FROM picked p
    WINDOW w AS (ORDER BY p.suspect AND p.seq <> (SELECT min(f.seq) FROM picked f), p.seq)
)
UPDATE dispatch_queue q
   SET lease_token = $3, lease_until = clock_timestamp() + $4 * interval '1 second', claims = q.claims + 1
  FROM bounded b
 WHERE q.seq = b.seq
   AND (b.place = 1
        OR (NOT b.suspect AND b.bytes <= $2 AND NOT (SELECT f.suspect FROM bounded f WHERE f.place = 1)))
RETURNING q.seq, q.delivery_id, q.autopilot_id, q.trigger_id, q.claims, q.attempts;

-- name: hold_rules
-- Level 2 of the lock order: nobody edits, pauses or archives these rules until the transaction ends; others may hold them too.
SELECT id FROM autopilot WHERE id = ANY($1::uuid[]) ORDER BY id FOR SHARE;

-- name: hold_triggers
-- Level 3: nor their triggers.
SELECT id FROM autopilot_trigger WHERE id = ANY($1::uuid[]) ORDER BY id FOR SHARE;

-- name: load
-- Undecided deliveries with what they are judged by: their trigger, if it still is one of their own rule and workspace, and their body.
SELECT d.id, d.workspace_id, d.autopilot_id, d.trigger_id, d.provider, d.event, d.content_type, t.event_filters, b.body, b.raw_size
  FROM unnest($1::uuid[]) AS k (id)
  JOIN webhook_delivery d ON d.id = k.id AND d.status = 'queued' AND d.run_id IS NULL
  LEFT JOIN autopilot_trigger t
    ON t.id = d.trigger_id AND t.autopilot_id = d.autopilot_id AND t.workspace_id = d.workspace_id AND t.deleted_at IS NULL
  LEFT JOIN webhook_body b ON b.delivery_id = d.id;

-- name: settle
-- What became of undecided deliveries, locked in id order: a pending run with its entry, a run skipped at once, or none. One that starts
-- nothing gives its dedupe slot back (S9.7).
WITH g AS (
    SELECT *
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::text[], $8::uuid[], $9::int[], $10::uuid[],
                  $11::uuid[], $12::uuid[], $13::text[])
        AS n (id, status, reason_code, reason, error, run_id, execution_mode, rule_version_id, rule_version, squad_id, agent_id,
              accountable_id, attribution_source)
), locked AS MATERIALIZED (
    SELECT d.id, d.workspace_id, d.autopilot_id, d.trigger_id
      FROM webhook_delivery d
     WHERE d.id = ANY($1::uuid[]) AND d.status = 'queued' AND d.run_id IS NULL
     ORDER BY d.id
       FOR NO KEY UPDATE OF d
), settled AS (
    UPDATE webhook_delivery d
       SET status = g.status, run_id = g.run_id, reason_code = g.reason_code, error = g.error
      FROM g
      JOIN locked l ON l.id = g.id
     WHERE d.id = g.id
), freed AS (
    DELETE FROM webhook_dedupe s USING g JOIN locked l ON l.id = g.id WHERE s.delivery_id = g.id AND g.status <> 'queued'
), runs AS (
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
           webhook_delivery_id, squad_id, agent_id, accountable_id, attribution_source, reason_code, failure_reason, completed_at)
    SELECT g.run_id, l.workspace_id, l.autopilot_id, l.trigger_id, 'webhook', CASE g.status WHEN 'queued' THEN 'pending' ELSE 'skipped' END,
           g.execution_mode, g.rule_version_id, g.rule_version, g.id, g.squad_id, g.agent_id, g.accountable_id, g.attribution_source,
           g.reason_code, g.reason, CASE WHEN g.status <> 'queued' THEN clock_timestamp() END
      FROM g
      JOIN locked l ON l.id = g.id
     WHERE g.run_id IS NOT NULL
), entries AS (
    INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id, size)
    SELECT g.run_id, l.autopilot_id, l.trigger_id, coalesce(b.raw_size, octet_length(b.body), 0)
      FROM g
      JOIN locked l ON l.id = g.id
      LEFT JOIN webhook_body b ON b.delivery_id = g.id
     WHERE g.run_id IS NOT NULL AND g.status = 'queued'
     ORDER BY g.id
)
SELECT id FROM locked;

-- name: note_errors
-- Why the last attempt to decide failed, for people who look at the delivery.
UPDATE webhook_delivery d
   SET error = g.error
  FROM unnest($1::uuid[], $2::text[]) AS g (id, error)
 WHERE d.id = g.id AND d.status = 'queued';
