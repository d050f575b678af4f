-- name: read_task_links
-- The immutable links of a task, read without a lock so that locks can be taken top-down; an issue's run is the one that made it.
SELECT t.id, t.workspace_id, t.agent_id, t.issue_id, coalesce(i.origin_run_id, t.run_id) AS run_id,
       coalesce(i.origin_autopilot_id, t.autopilot_id) AS autopilot_id
  FROM agent_task t
  LEFT JOIN issue i ON i.id = t.issue_id
 WHERE t.id = $1;

-- name: read_issue_links
-- The immutable links of an issue of this workspace.
SELECT id, workspace_id, origin_run_id, origin_autopilot_id FROM issue WHERE workspace_id = $1 AND id = $2;

-- name: lock_run
-- Level 6, first.
SELECT status FROM autopilot_run WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_issue
-- Level 6, after its run.
SELECT status FROM issue WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_task
-- Level 6, after its issue.
SELECT status, lease_token, runtime_id, attempt, max_attempts, claims FROM agent_task WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_active_tasks
-- The live tasks of an issue whose row the caller has locked, with the runtimes that hold them.
SELECT id, runtime_id FROM agent_task
 WHERE issue_id = $1 AND status IN ('queued', 'claimed', 'running') ORDER BY id FOR NO KEY UPDATE;

-- name: end_task
-- A final state; the lease token stays, so that its holder may ask again and learn what was stored.
UPDATE agent_task
   SET status = $2, result = $3, error = $4, failure_kind = $5, lease_until = NULL,
       finished_at = greatest(clock_timestamp(), started_at, claimed_at)
 WHERE id = $1 AND status IN ('queued', 'claimed', 'running');

-- name: requeue_task
-- The same row queued again after an infrastructure failure (S11.2), for a later time.
UPDATE agent_task
   SET status = 'queued', attempt = attempt + 1, available_at = clock_timestamp() + $2::interval, error = $3, failure_kind = $4,
       runtime_id = NULL, claim_id = NULL, lease_token = NULL, lease_until = NULL, claimed_at = NULL, started_at = NULL
 WHERE id = $1 AND status IN ('claimed', 'running');

-- name: unclaim_task
-- A claim whose answer was lost is no attempt.
UPDATE agent_task
   SET status = 'queued', available_at = clock_timestamp(), runtime_id = NULL, claim_id = NULL, lease_token = NULL,
       lease_until = NULL, claimed_at = NULL
 WHERE id = $1 AND status = 'claimed';

-- name: has_active_task
-- Whether an issue whose row the caller has locked still has a live task.
SELECT EXISTS (SELECT 1 FROM agent_task WHERE issue_id = $1 AND status IN ('queued', 'claimed', 'running'));

-- name: move_issue
-- A new state of an issue, and a title if one is given; closed_at follows the state. One statement for both: a row that a transaction
-- updates twice has its foreign keys checked again, which would lock the project after the issue.
UPDATE issue
   SET status = $2, title = coalesce($3, title), rev = rev + 1, updated_at = clock_timestamp(),
       closed_at = CASE WHEN $2 IN ('done', 'cancelled') THEN coalesce(closed_at, clock_timestamp()) END
 WHERE id = $1 AND status <> $2;

-- name: add_comment
-- What an agent, a person or the system says on an issue.
INSERT INTO issue_comment (id, workspace_id, issue_id, author_type, author_id, body) VALUES ($1, $2, $3, $4, $5, $6);

-- name: finish_run
-- Guarded by the state: a late fact changes nothing (S2.1). The event is told by the table itself.
UPDATE autopilot_run
   SET status = $2, result = $3, reason_code = $4, failure_reason = $5, completed_at = greatest(clock_timestamp(), started_at)
 WHERE id = $1 AND status IN ('issue_created', 'running')
RETURNING id;

-- name: delete_issue
-- The issue with what hangs on it, counted so that the numbers still add up; its tasks stay as history.
WITH comments AS (DELETE FROM issue_comment WHERE issue_id = $1),
     subscribers AS (DELETE FROM issue_subscriber WHERE issue_id = $1),
     deleted AS (DELETE FROM issue WHERE id = $1 RETURNING workspace_id)
UPDATE workspace_counter c SET deleted_issues = c.deleted_issues + 1 FROM deleted d WHERE c.workspace_id = d.workspace_id;

-- name: lease_is_over
-- The sweep's proof, repeated under the task's lock.
SELECT EXISTS (SELECT 1 FROM agent_task WHERE id = $1 AND status IN ('claimed', 'running') AND lease_until <= clock_timestamp());
