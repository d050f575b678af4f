-- name: hold_members
-- Level 1: nobody of these leaves the workspace before the caller has made them creator, publisher or subscriber.
SELECT user_id, role FROM member WHERE workspace_id = $1 AND user_id = ANY($2::uuid[]) ORDER BY user_id FOR KEY SHARE;

-- name: hold_squad
-- Level 1: the squad keeps its leader, and is not archived, until the caller commits.
SELECT leader_id FROM squad WHERE workspace_id = $1 AND id = $2 FOR SHARE;

-- name: find_runtime_of
-- The runtime an agent is bound to, not locked: what tells which row comes first in the lock order.
SELECT runtime_id FROM agent WHERE workspace_id = $1 AND id = $2;

-- name: hold_runtime
-- Level 1: the runtime is not deleted until the caller commits.
SELECT id FROM runtime WHERE workspace_id = $1 AND id = $2 FOR SHARE;

-- name: hold_agent
-- Level 1: the agent is neither archived, rebound nor hidden until the caller commits.
SELECT runtime_id FROM agent WHERE workspace_id = $1 AND id = $2 FOR SHARE;

-- name: hold_project
-- Level 1: the project is not deleted until the caller commits.
SELECT id FROM project WHERE workspace_id = $1 AND id = $2 FOR KEY SHARE;

-- name: load_executor
-- Who would execute for an assignee, judged for one person; read after the rows are held.
SELECT squad_archived, agent_id, agent_archived, agent_owner_id, agent_owner_present, agent_visibility, creator_has_share,
       runtime_id, runtime_seen_at, runtime_usable, runtime_detail, runtime_repair_hint
  FROM executor_facts($1, $2, $3, $4, $5);
