-- name: list_lost_tasks
-- Held tasks whose lease has run out, after the one named, with the runtime that their agent is bound to now.
SELECT t.id, t.lease_until AS due_at, a.runtime_id
  FROM agent_task t
  LEFT JOIN agent a ON a.workspace_id = t.workspace_id AND a.id = t.agent_id
 WHERE t.status IN ('claimed', 'running') AND t.lease_until <= statement_timestamp()
   AND ($1::timestamptz IS NULL OR (t.lease_until, t.id) > ($1, $2::uuid))
 ORDER BY t.lease_until, t.id
 LIMIT $3;

-- name: list_expired_tasks
-- Queued tasks that nobody claimed in time, after the one named.
SELECT t.id, t.expires_at AS due_at, NULL::uuid AS runtime_id
  FROM agent_task t
 WHERE t.status = 'queued' AND t.expires_at IS NOT NULL AND t.expires_at <= statement_timestamp()
   AND ($1::timestamptz IS NULL OR (t.expires_at, t.id) > ($1, $2::uuid))
 ORDER BY t.expires_at, t.id
 LIMIT $3;
