-- name: insert_deliveries
-- Deliveries with all that is born with them (slot, body, run, queue entry), in one statement. $1 holds what is a delivery's own and the place
-- of its ruling in $3 to $16: those of a batch are few, and encoding each value of each row for each column took longer than the rest of
-- sending. A row whose trigger or rule has changed since it was looked up does not join; one whose key or id exists already is left out; the
-- answer is the ids that were written. The entry of one that was not decided on is its own, not a run's (S9.10). `IS TRUE` makes each IN a hash
-- look-up: the planner expects a row or two and would join by comparing all pairs.
WITH new AS MATERIALIZED (
    SELECT n.id, n.trigger_id, t.workspace_id, t.autopilot_id, t.provider, n.event, n.dedupe_key, n.dedupe_source, n.body_sha,
           n.signature_status, n.status, n.headers, n.content_type, n.body, n.raw_size, n.response_status, n.response_body, n.reason_code,
           n.reason, n.run_id, n.agent_id, n.accountable_id, n.attribution_source,
           a.execution_mode, a.version_id, a.version, a.squad_id,
           n.dedupe_key IS NOT NULL AND n.status = 'queued' AS takes_slot
      FROM (SELECT o.id, o.run_id, o.dedupe_key, decode(o.body_sha, 'base64') AS body_sha, o.raw_size, o.headers, o.response_body, o.body,
                   ($3::uuid[])[o.ruling] AS trigger_id, ($4::bigint[])[o.ruling] AS trigger_rev, ($5::bigint[])[o.ruling] AS autopilot_rev,
                   ($6::text[])[o.ruling] AS event, ($7::text[])[o.ruling] AS dedupe_source, ($8::text[])[o.ruling] AS signature_status,
                   ($9::text[])[o.ruling] AS status, ($10::text[])[o.ruling] AS content_type, ($11::int[])[o.ruling] AS response_status,
                   ($12::text[])[o.ruling] AS reason_code, ($13::text[])[o.ruling] AS reason, ($14::uuid[])[o.ruling] AS agent_id,
                   ($15::uuid[])[o.ruling] AS accountable_id, ($16::text[])[o.ruling] AS attribution_source
              FROM ROWS FROM (
                       json_to_recordset($1::json) AS (id uuid, run_id uuid, dedupe_key text, body_sha text, raw_size int, headers jsonb,
                                                       response_body jsonb, ruling int),
                       unnest($2::bytea[])
                   ) AS o (id, run_id, dedupe_key, body_sha, raw_size, headers, response_body, ruling, body)
           ) n
      JOIN autopilot_trigger t ON t.id = n.trigger_id AND t.rev = n.trigger_rev AND t.deleted_at IS NULL
      JOIN autopilot a ON a.id = t.autopilot_id AND a.rev = coalesce(n.autopilot_rev, a.rev)
), slots AS (
    INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id, body_sha)
    SELECT n.trigger_id, n.dedupe_key, n.id, n.body_sha
      FROM new n
     WHERE n.takes_slot
     ORDER BY n.trigger_id, n.dedupe_key, n.id
        ON CONFLICT DO NOTHING
 RETURNING delivery_id
), born AS MATERIALIZED (
    SELECT n.*
      FROM new n
     WHERE CASE WHEN n.takes_slot THEN (n.id IN (SELECT s.delivery_id FROM slots s)) IS TRUE
                ELSE n.status = 'rejected'
                     OR NOT EXISTS (SELECT 1 FROM webhook_dedupe d WHERE d.trigger_id = n.trigger_id AND d.dedupe_key = n.dedupe_key)
           END
), deliveries AS (
    INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, dedupe_key, dedupe_source,
           signature_status, status, headers, content_type, response_status, response_body, run_id, reason_code)
    SELECT b.id, b.workspace_id, b.autopilot_id, b.trigger_id, b.provider, b.event, b.dedupe_key, b.dedupe_source,
           b.signature_status, b.status, b.headers, b.content_type, b.response_status, b.response_body, b.run_id,
           b.reason_code
      FROM born b
     ORDER BY b.id
        ON CONFLICT DO NOTHING
 RETURNING id
), bodies AS (
    INSERT INTO webhook_body (delivery_id, body, raw_size)
    SELECT b.id, b.body, b.raw_size FROM born b WHERE (b.id IN (SELECT d.id FROM deliveries d)) IS TRUE
), runs AS (
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id,
           rule_version, webhook_delivery_id, squad_id, agent_id, accountable_id, attribution_source, reason_code, failure_reason,
           completed_at)
    SELECT b.run_id, b.workspace_id, b.autopilot_id, b.trigger_id, 'webhook',
           CASE b.status WHEN 'queued' THEN 'pending' ELSE 'skipped' END, b.execution_mode, b.version_id, b.version, b.id, b.squad_id,
           b.agent_id, b.accountable_id, b.attribution_source, b.reason_code, b.reason,
           CASE WHEN b.status <> 'queued' THEN clock_timestamp() END
      FROM born b
     WHERE b.run_id IS NOT NULL AND (b.id IN (SELECT d.id FROM deliveries d)) IS TRUE
), entries AS (
    INSERT INTO dispatch_queue (run_id, delivery_id, autopilot_id, trigger_id, size)
    SELECT b.run_id, CASE WHEN b.run_id IS NULL THEN b.id END, b.autopilot_id, b.trigger_id, coalesce(b.raw_size, octet_length(b.body))
      FROM born b
     WHERE b.status = 'queued' AND (b.id IN (SELECT d.id FROM deliveries d)) IS TRUE
     ORDER BY b.id
)
SELECT id FROM deliveries;

-- name: find_written
-- Deliveries by id, for a writer that does not know whether its COMMIT happened: what was answered is what is stored.
SELECT d.id, d.run_id, d.response_status, d.response_body::text AS response_body, d.status = 'queued' AS waits
  FROM unnest($1::uuid[]) AS k (id)
  JOIN webhook_delivery d ON d.id = k.id;

-- name: find_slots
-- Who holds the slots that rows did not get, with the digest of their body.
SELECT s.trigger_id, s.dedupe_key, s.body_sha, d.id, d.run_id, d.status = 'queued' AS waits
  FROM unnest($1::uuid[], $2::text[]) AS k (trigger_id, dedupe_key)
  JOIN webhook_dedupe s ON s.trigger_id = k.trigger_id AND s.dedupe_key = k.dedupe_key
  JOIN webhook_delivery d ON d.id = s.delivery_id;

-- name: count_attempts
-- Repeats add up on the original, locked in id order; a statement, and a transaction, of its own.
WITH locked AS MATERIALIZED (
    SELECT d.id, k.repeats
      FROM unnest($1::uuid[], $2::int[]) AS k (id, repeats)
      JOIN webhook_delivery d ON d.id = k.id
     ORDER BY d.id
       FOR NO KEY UPDATE OF d
)
UPDATE webhook_delivery d
   SET attempt_count = d.attempt_count + l.repeats, last_attempt_at = greatest(clock_timestamp(), d.last_attempt_at)
  FROM locked l
 WHERE d.id = l.id;
