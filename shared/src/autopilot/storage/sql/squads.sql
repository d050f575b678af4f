-- name: insert_squad
-- A new squad, led by an agent that the caller holds.
INSERT INTO squad (id, workspace_id, name, leader_id, created_by) VALUES ($1, $2, $3, $4, $5);

-- name: find_squad
-- One squad.
SELECT id, workspace_id, name, leader_id, created_by, created_at, archived_at, rev
  FROM squad
 WHERE workspace_id = $1 AND id = $2;

-- name: list_squads
-- The squads of a workspace, newest first.
SELECT id, workspace_id, name, leader_id, created_by, created_at, archived_at, rev
  FROM squad
 WHERE workspace_id = $1
   AND ($2 OR archived_at IS NULL)
   AND ($3::uuid IS NULL OR id < $3)
 ORDER BY id DESC
 LIMIT $4;

-- name: lock_squad
-- Hold a squad for an edit.
SELECT id FROM squad WHERE workspace_id = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: update_squad
-- New values for a squad that the caller holds; the same values are no edit.
UPDATE squad SET name = $2, leader_id = $3, rev = rev + 1
 WHERE id = $1 AND (name, leader_id) IS DISTINCT FROM ($2, $3);

-- name: archive_squad
-- Out of use, with its row kept; the first time stands.
UPDATE squad SET archived_at = clock_timestamp(), rev = rev + 1 WHERE id = $1 AND archived_at IS NULL;
