-- name: find_issue
-- One issue of a workspace with its key.
SELECT i.id, i.workspace_id, i.number, w.issue_prefix || '-' || i.number AS key, i.title, i.body, i.status, i.assignee_type, i.assignee_id,
       i.creator_type, i.creator_id, i.project_id, i.origin_autopilot_id, i.origin_run_id, i.rev, i.created_at, i.updated_at, i.closed_at
  FROM issue i
  JOIN workspace w ON w.id = i.workspace_id
 WHERE i.workspace_id = $1 AND i.id = $2;

-- name: find_numbered
-- The same by its number; with a prefix, only if that is the workspace's.
SELECT i.id, i.workspace_id, i.number, w.issue_prefix || '-' || i.number AS key, i.title, i.body, i.status, i.assignee_type, i.assignee_id,
       i.creator_type, i.creator_id, i.project_id, i.origin_autopilot_id, i.origin_run_id, i.rev, i.created_at, i.updated_at, i.closed_at
  FROM issue i
  JOIN workspace w ON w.id = i.workspace_id
 WHERE i.workspace_id = $1 AND i.number = $2 AND ($3::text IS NULL OR w.issue_prefix = $3);

-- name: list_issues
-- The issues of a workspace, newest first, in a state or of a rule if asked for.
SELECT i.id, i.workspace_id, i.number, w.issue_prefix || '-' || i.number AS key, i.title, i.body, i.status, i.assignee_type, i.assignee_id,
       i.creator_type, i.creator_id, i.project_id, i.origin_autopilot_id, i.origin_run_id, i.rev, i.created_at, i.updated_at, i.closed_at
  FROM issue i
  JOIN workspace w ON w.id = i.workspace_id
 WHERE i.workspace_id = $1
   AND ($2::uuid IS NULL OR i.id < $2)
   AND ($3::text IS NULL OR i.status = $3)
   AND ($4::uuid IS NULL OR i.origin_autopilot_id = $4)
 ORDER BY i.id DESC
 LIMIT $5;

-- name: retitle_issue
-- Another title of an issue that the caller has locked.
UPDATE issue SET title = $2, rev = rev + 1, updated_at = clock_timestamp() WHERE id = $1;

-- name: list_comments
-- What was said on an issue, newest first.
SELECT id, author_type, author_id, body, created_at
  FROM issue_comment
 WHERE issue_id = $1 AND ($2::uuid IS NULL OR id < $2)
 ORDER BY id DESC
 LIMIT $3;

-- name: find_comment
-- One comment.
SELECT id, author_type, author_id, body, created_at FROM issue_comment WHERE id = $1;
