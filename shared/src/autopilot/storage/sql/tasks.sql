-- name: is_here
-- Whether a task belongs to a workspace.
SELECT EXISTS (SELECT 1 FROM agent_task WHERE workspace_id = $1 AND id = $2);

-- name: find_task
-- One task of a workspace, without its prompt and its lease token.
SELECT t.id, t.workspace_id, t.agent_id, t.issue_id, t.run_id, t.autopilot_id, t.accountable_id, t.status, t.attempt, t.max_attempts,
       t.timeout_s, t.available_at, t.expires_at, t.runtime_id, t.lease_until, t.progress, t.result, t.error, t.failure_kind,
       t.created_at, t.claimed_at, t.started_at, t.finished_at
  FROM agent_task t
 WHERE t.workspace_id = $1 AND t.id = $2;

-- name: list_tasks
-- The tasks of a workspace, newest first, in a state, of an agent or of an issue if asked for.
SELECT t.id, t.workspace_id, t.agent_id, t.issue_id, t.run_id, t.autopilot_id, t.accountable_id, t.status, t.attempt, t.max_attempts,
       t.timeout_s, t.available_at, t.expires_at, t.runtime_id, t.lease_until, t.progress, t.result, t.error, t.failure_kind,
       t.created_at, t.claimed_at, t.started_at, t.finished_at
  FROM agent_task t
 WHERE t.workspace_id = $1
   AND ($2::uuid IS NULL OR t.id < $2)
   AND ($3::text IS NULL OR t.status = $3)
   AND ($4::uuid IS NULL OR t.agent_id = $4)
   AND ($5::uuid IS NULL OR t.issue_id = $5)
 ORDER BY t.id DESC
 LIMIT $6;
