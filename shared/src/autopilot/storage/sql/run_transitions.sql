-- name: start_runs
-- Pending runs start, with who executes and who answers as found now; the database tells the event.
UPDATE autopilot_run r
   SET status = g.status, issue_id = g.issue_id, task_id = g.task_id, squad_id = g.squad_id, agent_id = g.agent_id,
       accountable_id = g.accountable_id, attribution_source = g.attribution_source, dispatch_attempts = g.attempts,
       started_at = greatest(clock_timestamp(), r.created_at)
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[], $9::int[])
    AS g (id, status, issue_id, task_id, squad_id, agent_id, accountable_id, attribution_source, attempts)
 WHERE r.id = g.id AND r.status = 'pending'
RETURNING r.id;

-- name: end_pending_runs
-- Pending runs end without having started; what admission knew of executor and attribution stays where nothing newer is known.
UPDATE autopilot_run r
   SET status = g.status, reason_code = g.reason_code, failure_reason = g.failure_reason,
       squad_id = coalesce(g.squad_id, r.squad_id), agent_id = coalesce(g.agent_id, r.agent_id),
       accountable_id = CASE WHEN g.accountable_id IS NULL THEN r.accountable_id ELSE g.accountable_id END,
       attribution_source = CASE WHEN g.accountable_id IS NULL THEN r.attribution_source ELSE g.attribution_source END,
       dispatch_attempts = g.attempts, last_dispatch_error = coalesce(g.error, r.last_dispatch_error),
       completed_at = greatest(clock_timestamp(), r.created_at)
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[], $9::int[], $10::text[])
    AS g (id, status, reason_code, failure_reason, squad_id, agent_id, accountable_id, attribution_source, attempts, error)
 WHERE r.id = g.id AND r.status = 'pending'
RETURNING r.id;

-- name: settle_deliveries
-- The deliveries of runs follow them out of pending, locked in id order; one whose run did not start gives its dedupe slot back (S9.7, S10.4).
WITH settled AS MATERIALIZED (
    SELECT d.id, r.status, r.reason_code, r.failure_reason
      FROM autopilot_run r
      JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
     WHERE r.id = ANY($1::uuid[])
     ORDER BY d.id
       FOR NO KEY UPDATE OF d
), freed AS (
    DELETE FROM webhook_dedupe s USING settled x WHERE s.delivery_id = x.id AND x.status IN ('skipped', 'failed')
)
UPDATE webhook_delivery d
   SET status = CASE x.status WHEN 'failed' THEN 'failed' ELSE 'dispatched' END,
       reason_code = x.reason_code, error = CASE x.status WHEN 'failed' THEN x.failure_reason END
  FROM settled x
 WHERE d.id = x.id AND d.status = 'queued';

-- name: note_fired
-- When each trigger's runs last left pending; kept beside the trigger, in trigger order.
INSERT INTO trigger_activity (trigger_id, last_fired_at)
SELECT t.id, clock_timestamp() FROM unnest($1::uuid[]) AS t (id) ORDER BY t.id
    ON CONFLICT (trigger_id) DO UPDATE SET last_fired_at = greatest(trigger_activity.last_fired_at, excluded.last_fired_at);
