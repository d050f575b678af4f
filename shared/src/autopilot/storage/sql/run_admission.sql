-- name: insert_runs
-- Runs with what their outcome needs, in one statement: 'admit' a queue entry, 'park' a deferred one with its deadline, 'skip' nothing
-- more (the database tells the event). A run that loses a unique key (plan, idempotency) is left out of the answer.
WITH new AS (
    SELECT *
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::int[],
                  $10::timestamptz[], $11::text[], $12::uuid[], $13::bytea[], $14::text[], $15::bytea[], $16::uuid[], $17::uuid[],
                  $18::uuid[], $19::uuid[], $20::text[], $21::uuid[], $22::text[], $23::text[], $24::int[], $25::timestamptz[])
        AS n (id, workspace_id, autopilot_id, trigger_id, outcome, source, execution_mode, rule_version_id, rule_version,
              planned_at, idempotency_key, idempotency_actor, idempotency_sha, event, payload, squad_id, agent_id,
              originator_id, accountable_id, attribution_source, api_token_id, reason_code, failure_reason, missed_count, park_until)
), instant AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), inserted AS (
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id,
           rule_version, planned_at, idempotency_key, idempotency_actor, idempotency_sha, event, payload, squad_id, agent_id,
           originator_id, accountable_id, attribution_source, api_token_id, reason_code, failure_reason, missed_count, created_at, completed_at)
    SELECT n.id, n.workspace_id, n.autopilot_id, n.trigger_id, n.source,
           CASE n.outcome WHEN 'skip' THEN 'skipped' WHEN 'fail' THEN 'failed' ELSE 'pending' END,
           n.execution_mode, n.rule_version_id, n.rule_version, n.planned_at, n.idempotency_key, n.idempotency_actor,
           n.idempotency_sha, n.event, n.payload, n.squad_id, n.agent_id, n.originator_id, n.accountable_id, n.attribution_source,
           n.api_token_id, n.reason_code, n.failure_reason, n.missed_count,
           i.now, CASE WHEN n.outcome IN ('skip', 'fail') THEN i.now END
      FROM new n, instant i
     ORDER BY n.trigger_id, n.planned_at, n.id
        ON CONFLICT DO NOTHING
 RETURNING id
), queued AS (
    INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id, size)
    SELECT n.id, n.autopilot_id, n.trigger_id, coalesce(octet_length(n.payload), 0)
      FROM inserted i JOIN new n ON n.id = i.id
     WHERE n.outcome = 'admit'
     ORDER BY n.id
), parked AS (
    INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, trigger_id, available_at, enqueued_at)
    SELECT 'parked', n.id, n.autopilot_id, n.trigger_id, n.park_until, clock_timestamp()
      FROM inserted i JOIN new n ON n.id = i.id
     WHERE n.outcome = 'park'
)
SELECT id FROM inserted;
