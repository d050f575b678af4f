-- name: insert_project
-- A new project.
INSERT INTO project (id, workspace_id, name, created_by) VALUES ($1, $2, $3, $4);

-- name: find_project
-- One project.
SELECT id, workspace_id, name, created_by, created_at, rev FROM project WHERE workspace_id = $1 AND id = $2;

-- name: list_projects
-- The projects of a workspace, newest first.
SELECT id, workspace_id, name, created_by, created_at, rev
  FROM project
 WHERE workspace_id = $1
   AND ($2::uuid IS NULL OR id < $2)
 ORDER BY id DESC
 LIMIT $3;

-- name: rename_project
-- Another name for a project that the caller holds; the same one is no edit.
UPDATE project SET name = $2, rev = rev + 1 WHERE id = $1 AND name <> $2;

-- name: lock_project
-- Level 1: hold a project for an edit or its deletion; read it in a later statement.
SELECT id FROM project WHERE workspace_id = $1 AND id = $2 FOR UPDATE;

-- name: lock_rules
-- Level 2: the rules that name a project, in id order; the deletion itself would take them in the order of their rows.
SELECT a.id
  FROM project p
  JOIN autopilot a ON a.workspace_id = p.workspace_id AND a.project_id = p.id
 WHERE p.id = $1
 ORDER BY a.id
   FOR NO KEY UPDATE OF a;

-- name: delete_project
-- Gone; rules and issues that named it name none (S4.7).
DELETE FROM project WHERE id = $1;
