-- name: find_autopilot
-- One rule of a workspace, as it stands.
SELECT id, workspace_id, title, description, execution_mode, issue_title_template, assignee_type, agent_id, squad_id, project_id,
       overlap_policy, status, pause_reason, creator_id, rule_owner_id, version, version_id, rev, resumed_at, created_at,
       updated_at, archived_at
  FROM autopilot
 WHERE workspace_id = $1 AND id = $2;

-- name: lock_rules
-- Level 2 of the lock order, in id order, with the rows as they are after the wait.
SELECT id, workspace_id, title, description, execution_mode, issue_title_template, assignee_type, agent_id, squad_id, project_id,
       overlap_policy, status, pause_reason, creator_id, rule_owner_id, version, version_id, rev, resumed_at, created_at,
       updated_at, archived_at
  FROM autopilot
 WHERE workspace_id = $1 AND id = ANY($2::uuid[])
 ORDER BY id
   FOR NO KEY UPDATE;

-- name: insert_autopilot
-- A rule with the number and id of its first version.
INSERT INTO autopilot (id, workspace_id, title, description, execution_mode, issue_title_template, assignee_type, agent_id, squad_id,
       project_id, overlap_policy, status, pause_reason, creator_id, rule_owner_id, version, version_id, rev, resumed_at, created_at,
       updated_at, archived_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22);

-- name: update_autopilot
-- Every field an edit may change, of a row that the caller has locked.
UPDATE autopilot
   SET title = $2, description = $3, execution_mode = $4, issue_title_template = $5, assignee_type = $6, agent_id = $7, squad_id = $8,
       project_id = $9, overlap_policy = $10, status = $11, pause_reason = $12, creator_id = $13, rule_owner_id = $14, version = $15,
       version_id = $16, rev = $17, resumed_at = $18, updated_at = $19, archived_at = $20
 WHERE id = $1;

-- name: list_autopilots
-- A page, newest first: the page is cut before anything is looked up for it, and each look-up is one index probe a row.
SELECT a.id, a.workspace_id, a.title, a.description, a.execution_mode, a.issue_title_template, a.assignee_type, a.agent_id, a.squad_id,
       a.project_id, a.overlap_policy, a.status, a.pause_reason, a.creator_id, a.rule_owner_id, a.version, a.version_id, a.rev,
       a.resumed_at, a.created_at, a.updated_at, a.archived_at,
       t.trigger_kinds, t.next_run_at, r.created_at AS last_run_at, r.status AS last_run_status
  FROM (SELECT x.id
          FROM autopilot x
         WHERE x.workspace_id = $1
           AND ($2::uuid IS NULL OR x.id < $2)
           AND CASE WHEN $3::text IS NULL THEN x.status <> 'archived' ELSE x.status = $3 END
           AND ($4::uuid IS NULL OR x.agent_id = $4 OR x.squad_id = $4)
           AND ($5::text IS NULL OR x.execution_mode = $5)
         ORDER BY x.id DESC
         LIMIT $6) page
  JOIN autopilot a ON a.id = page.id
  LEFT JOIN LATERAL (SELECT array_agg(DISTINCT y.kind ORDER BY y.kind) AS trigger_kinds, min(y.next_run_at) AS next_run_at
                       FROM autopilot_trigger y
                      WHERE y.workspace_id = a.workspace_id AND y.autopilot_id = a.id AND y.deleted_at IS NULL) t ON true
  LEFT JOIN LATERAL (SELECT z.created_at, z.status
                       FROM autopilot_run z
                      WHERE z.autopilot_id = a.id
                      ORDER BY z.id DESC
                      LIMIT 1) r ON true
 ORDER BY a.id DESC;

-- name: find_last_run
-- When a rule last ran, and how that stands.
SELECT created_at, status FROM autopilot_run WHERE autopilot_id = $1 ORDER BY id DESC LIMIT 1;

-- name: list_dependents
-- The active rules that some agents execute (themselves or as a squad's leader), or that a squad does.
SELECT a.id
  FROM autopilot a
 WHERE a.workspace_id = $1
   AND a.status = 'active'
   AND (a.agent_id = ANY($2::uuid[])
        OR a.squad_id = $3::uuid
        OR a.squad_id IN (SELECT s.id FROM squad s WHERE s.workspace_id = $1 AND s.leader_id = ANY($2)))
 ORDER BY a.id;

-- name: list_active_of
-- The first of the active rules that a person created.
SELECT id FROM autopilot WHERE workspace_id = $1 AND creator_id = $2 AND status = 'active' ORDER BY id LIMIT $3;

-- name: list_squad_rules
-- Every rule assigned to a squad, whatever its status.
SELECT id FROM autopilot WHERE workspace_id = $1 AND squad_id = $2 ORDER BY id;

-- name: list_subscribers
-- Who is told about a rule's issues.
SELECT user_id FROM autopilot_subscriber WHERE autopilot_id = $1 ORDER BY user_id;

-- name: delete_other_subscribers
-- Those who are no longer in the list.
DELETE FROM autopilot_subscriber WHERE autopilot_id = $1 AND user_id <> ALL($2::uuid[]);

-- name: insert_subscribers
-- Those who are new in the list.
INSERT INTO autopilot_subscriber (workspace_id, autopilot_id, user_id)
SELECT $1, $2, u.user_id FROM unnest($3::uuid[]) AS u (user_id) ORDER BY u.user_id
    ON CONFLICT DO NOTHING;
