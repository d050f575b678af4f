-- name: insert_workspace
-- A workspace with its issue counter and its event head, which later work locks and never makes.
WITH made AS (
    INSERT INTO workspace (id, slug, name, issue_prefix) VALUES ($1, $2, $3, $4)
    RETURNING id, slug, name, issue_prefix, attribution_policy, created_at
), counter AS (
    INSERT INTO workspace_counter (workspace_id) SELECT id FROM made
), head AS (
    INSERT INTO event_head (workspace_id) SELECT id FROM made
)
SELECT id, slug, name, issue_prefix, attribution_policy, created_at FROM made;

-- name: find_workspace
-- One workspace by id.
SELECT id, slug, name, issue_prefix, attribution_policy, created_at FROM workspace WHERE id = $1;

-- name: find_workspace_by_slug
-- One workspace by slug.
SELECT id, slug, name, issue_prefix, attribution_policy, created_at FROM workspace WHERE slug = $1;

-- name: list_workspaces_of
-- The workspaces of a person, newest first; of one bound token only its own.
SELECT w.id, w.slug, w.name, w.issue_prefix, w.attribution_policy, w.created_at, m.role
  FROM member m
  JOIN workspace w ON w.id = m.workspace_id
 WHERE m.user_id = $1
   AND ($2::uuid IS NULL OR w.id = $2)
   AND ($3::uuid IS NULL OR w.id < $3)
 ORDER BY w.id DESC
 LIMIT $4;

-- name: update_workspace
-- New values for what a workspace's owners and admins may change; null leaves a value as it is.
UPDATE workspace
   SET name = coalesce($2, name), attribution_policy = coalesce($3, attribution_policy)
 WHERE id = $1
RETURNING id, slug, name, issue_prefix, attribution_policy, created_at;
