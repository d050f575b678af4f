-- name: list_watchers
-- Who is told of what happens to rules: owners and admins, and those of the given people who are still members.
SELECT m.user_id, m.role IN ('owner', 'admin') AS runs_it
  FROM member m
 WHERE m.workspace_id = $1 AND (m.role IN ('owner', 'admin') OR m.user_id = ANY($2::uuid[]))
 ORDER BY m.user_id;

-- name: insert_items
-- Lines about rules, one for each person and notice.
INSERT INTO inbox_item (id, workspace_id, user_id, kind, title, autopilot_id, run_id)
SELECT n.id, $1, n.user_id, n.kind, n.title, n.autopilot_id, n.run_id
  FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::uuid[])
    AS n (id, user_id, kind, title, autopilot_id, run_id);

-- name: list_items
-- A page of a person's inbox, newest first, of what they have not read if asked for.
SELECT i.id, i.kind, i.title, i.autopilot_id, i.run_id, i.issue_id, i.created_at, i.read_at
  FROM inbox_item i
 WHERE i.workspace_id = $1 AND i.user_id = $2
   AND ($3::uuid IS NULL OR i.id < $3)
   AND (NOT $4 OR i.read_at IS NULL)
 ORDER BY i.id DESC
 LIMIT $5;

-- name: mark_read
-- A line that its person has read; the first time stays.
UPDATE inbox_item i
   SET read_at = coalesce(i.read_at, greatest(clock_timestamp(), i.created_at))
 WHERE i.workspace_id = $1 AND i.user_id = $2 AND i.id = $3
RETURNING i.id, i.kind, i.title, i.autopilot_id, i.run_id, i.issue_id, i.created_at, i.read_at;

-- name: mark_all_read
-- All lines of a person up to one that they have not read.
UPDATE inbox_item i
   SET read_at = greatest(clock_timestamp(), i.created_at)
 WHERE i.workspace_id = $1 AND i.user_id = $2 AND i.id <= $3 AND i.read_at IS NULL;
