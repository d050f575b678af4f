-- name: find_run
-- One run of a rule with what is known beside it: its queue entry, its task, its delivery.
SELECT r.id, r.workspace_id, r.autopilot_id, r.trigger_id, r.source, r.status, r.execution_mode, r.rule_version_id, r.rule_version,
       r.planned_at, r.webhook_delivery_id AS delivery_id, r.event, r.squad_id, r.agent_id, r.issue_id, r.task_id, r.originator_id,
       r.accountable_id, r.attribution_source, r.api_token_id, r.reason_code, r.failure_reason, r.result, r.missed_count,
       coalesce(q.attempts, p.attempts, r.dispatch_attempts) AS dispatch_attempts,
       coalesce(q.last_error, p.last_error, r.last_dispatch_error) AS last_dispatch_error,
       CASE WHEN p.kind <> 'parked' THEN p.available_at END AS next_attempt_at, coalesce(p.kind = 'parked', false) AS parked,
       coalesce(p.kind = 'paced', false) AS paced,
       CASE WHEN q.lease_until > clock_timestamp() THEN q.lease_until END AS lease_until,
       r.created_at, r.started_at, r.completed_at, d.received_at, d.event AS delivery_event,
       t.status AS task_status, t.attempt AS task_attempt, t.runtime_id, t.claimed_at, t.started_at AS task_started_at,
       t.finished_at AS task_finished_at, t.progress, w.issue_prefix || '-' || i.number AS issue_key, i.status AS issue_status
  FROM autopilot_run r
  JOIN workspace w ON w.id = r.workspace_id
  LEFT JOIN dispatch_queue q ON q.run_id = r.id
  LEFT JOIN dispatch_deferred p ON p.run_id = r.id
  LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
  LEFT JOIN agent_task t ON t.id = r.task_id
  LEFT JOIN issue i ON i.id = r.issue_id
 WHERE r.workspace_id = $1 AND r.autopilot_id = $2 AND r.id = $3;

-- name: list_runs
-- A page of a rule's runs, newest first: the page is cut before anything is looked up for it.
SELECT r.id, r.workspace_id, r.autopilot_id, r.trigger_id, r.source, r.status, r.execution_mode, r.rule_version_id, r.rule_version,
       r.planned_at, r.webhook_delivery_id AS delivery_id, r.event, r.squad_id, r.agent_id, r.issue_id, r.task_id, r.originator_id,
       r.accountable_id, r.attribution_source, r.api_token_id, r.reason_code, r.failure_reason, r.result, r.missed_count,
       coalesce(q.attempts, p.attempts, r.dispatch_attempts) AS dispatch_attempts,
       coalesce(q.last_error, p.last_error, r.last_dispatch_error) AS last_dispatch_error,
       CASE WHEN p.kind <> 'parked' THEN p.available_at END AS next_attempt_at, coalesce(p.kind = 'parked', false) AS parked,
       coalesce(p.kind = 'paced', false) AS paced,
       CASE WHEN q.lease_until > clock_timestamp() THEN q.lease_until END AS lease_until,
       r.created_at, r.started_at, r.completed_at, d.received_at, d.event AS delivery_event,
       t.status AS task_status, t.attempt AS task_attempt, t.runtime_id, t.claimed_at, t.started_at AS task_started_at,
       t.finished_at AS task_finished_at, t.progress, w.issue_prefix || '-' || i.number AS issue_key, i.status AS issue_status
  FROM (SELECT x.id, x.workspace_id, x.autopilot_id, x.trigger_id, x.source, x.status, x.execution_mode, x.rule_version_id, x.rule_version,
               x.planned_at, x.webhook_delivery_id, x.event, x.squad_id, x.agent_id, x.issue_id, x.task_id, x.originator_id, x.accountable_id,
               x.attribution_source, x.api_token_id, x.reason_code, x.failure_reason, x.result, x.missed_count, x.dispatch_attempts,
               x.last_dispatch_error, x.created_at, x.started_at, x.completed_at
          FROM autopilot_run x
         WHERE x.autopilot_id = $2 AND x.workspace_id = $1 AND ($3::uuid IS NULL OR x.id < $3)
         ORDER BY x.id DESC
         LIMIT $4
        OFFSET $5) r
  JOIN workspace w ON w.id = r.workspace_id
  LEFT JOIN dispatch_queue q ON q.run_id = r.id
  LEFT JOIN dispatch_deferred p ON p.run_id = r.id
  LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
  LEFT JOIN agent_task t ON t.id = r.task_id
  LEFT JOIN issue i ON i.id = r.issue_id
 ORDER BY r.id DESC;

-- name: find_payload
-- What a run was given: an api caller's payload, or the body of its delivery, which is not copied (S2.6).
SELECT r.payload, d.provider, d.content_type, b.body, b.raw_size, d.id IS NOT NULL AND b.delivery_id IS NULL AS expired
  FROM autopilot_run r
  LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
  LEFT JOIN webhook_body b ON b.delivery_id = d.id
 WHERE r.id = $1;

-- name: find_by_key
-- The run that an idempotency key has made already, with the digest of the body it came with.
SELECT id, idempotency_sha FROM autopilot_run
 WHERE autopilot_id = $1 AND source = $2 AND idempotency_actor = $3 AND idempotency_key = $4;

-- name: find_settled
-- Those of the runs that have left pending: what one poll for all waiting requests asks.
SELECT id FROM autopilot_run WHERE id = ANY($1::uuid[]) AND status <> 'pending';
