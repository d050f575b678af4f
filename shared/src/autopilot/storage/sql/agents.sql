-- name: insert_agent
-- A new agent of $4, bound to a runtime that the caller holds, or to none.
INSERT INTO agent (id, workspace_id, name, owner_id, visibility, runtime_id) VALUES ($1, $2, $3, $4, $5, $6);

-- name: find_agent
-- One agent and how $3 (null: a program) stands to it.
SELECT a.id, a.workspace_id, a.name, a.owner_id, a.visibility, a.runtime_id, a.created_at, a.archived_at, a.rev,
       ARRAY(SELECT s.user_id FROM agent_share s WHERE s.agent_id = a.id ORDER BY s.user_id) AS shared_with,
       coalesce(a.visibility = 'workspace' OR a.owner_id = $3::uuid
                OR EXISTS (SELECT 1 FROM agent_share s WHERE s.agent_id = a.id AND s.user_id = $3), false) AS invocable
  FROM agent a
 WHERE a.workspace_id = $1 AND a.id = $2;

-- name: list_agents
-- The agents that $2 may invoke (null: those of the whole workspace), newest first.
SELECT a.id, a.workspace_id, a.name, a.owner_id, a.visibility, a.runtime_id, a.created_at, a.archived_at, a.rev,
       ARRAY(SELECT s.user_id FROM agent_share s WHERE s.agent_id = a.id ORDER BY s.user_id) AS shared_with,
       true AS invocable
  FROM agent a
 WHERE a.workspace_id = $1
   AND (a.visibility = 'workspace' OR a.owner_id = $2::uuid
        OR EXISTS (SELECT 1 FROM agent_share s WHERE s.agent_id = a.id AND s.user_id = $2))
   AND ($3 OR a.archived_at IS NULL)
   AND ($4::uuid IS NULL OR a.id < $4)
 ORDER BY a.id DESC
 LIMIT $5;

-- name: lock_agent
-- Hold an agent for an edit.
SELECT id FROM agent WHERE workspace_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: hold_agent
-- Keep an agent from being edited or archived while something is bound to it.
SELECT id FROM agent WHERE workspace_id = $1 AND id = $2 FOR SHARE;

-- name: update_agent
-- New values for an agent that the caller holds; the same values are no edit.
UPDATE agent SET name = $2, runtime_id = $3, visibility = $4, rev = rev + 1
 WHERE id = $1 AND (name, runtime_id, visibility) IS DISTINCT FROM ($2, $3, $4);

-- name: archive_agent
-- Out of use, with its rows kept; the first time stands.
UPDATE agent SET archived_at = clock_timestamp(), rev = rev + 1 WHERE id = $1 AND archived_at IS NULL;

-- name: insert_share
-- Let a member invoke an agent; once is enough.
INSERT INTO agent_share (workspace_id, agent_id, user_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: delete_share
-- Let a member no longer invoke an agent.
DELETE FROM agent_share WHERE workspace_id = $1 AND agent_id = $2 AND user_id = $3;
