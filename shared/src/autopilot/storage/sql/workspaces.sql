-- name: insert_workspace
-- A workspace with its issue counter and its event head, which later work locks and never makes.
WITH made AS (
    INSERT INTO workspace (id, slug, name, issue_prefix) VALUES ($1, $2, $3, $4)
    RETURNING id, slug, name, issue_prefix, attribution_policy, created_at, rev
), counter AS (
    INSERT INTO workspace_counter (workspace_id) SELECT id FROM made
), head AS (
    INSERT INTO event_head (workspace_id) SELECT id FROM made
)
SELECT id, slug, name, issue_prefix, attribution_policy, created_at, rev FROM made;

-- name: find_workspace
-- One workspace by id.
SELECT id, slug, name, issue_prefix, attribution_policy, created_at, rev FROM workspace WHERE id = $1;

-- name: find_workspace_by_slug
-- One workspace by slug.
SELECT id, slug, name, issue_prefix, attribution_policy, created_at, rev FROM workspace WHERE slug = $1;

-- name: list_workspaces_of
-- The workspaces of a person, newest first; of one bound token only its own.
SELECT w.id, w.slug, w.name, w.issue_prefix, w.attribution_policy, w.created_at, w.rev, m.role
  FROM member m
  JOIN workspace w ON w.id = m.workspace_id
 WHERE m.user_id = $1
   AND ($2::uuid IS NULL OR w.id = $2)
   AND ($3::uuid IS NULL OR w.id < $3)
 ORDER BY w.id DESC
 LIMIT $4;

-- name: lock_workspace
-- Hold a workspace for an edit; read it in a later statement. What names it by a foreign key does not wait.
SELECT id FROM workspace WHERE id = $1 FOR NO KEY UPDATE;

-- name: update_workspace
-- New values for a workspace that the caller holds; the same values are no edit.
UPDATE workspace SET name = $2, attribution_policy = $3, rev = rev + 1
 WHERE id = $1 AND (name, attribution_policy) IS DISTINCT FROM ($2, $3);
