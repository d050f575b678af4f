-- name: insert_version
-- What was published, by whom, when; never changed again.
INSERT INTO autopilot_rule_version (id, workspace_id, autopilot_id, version, publisher_type, published_by, edited_by, change, rule)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: find_publisher
-- Who published a version.
SELECT publisher_type, published_by FROM autopilot_rule_version WHERE id = $1;

-- name: list_versions
-- The history of one rule, newest first, from below a number.
SELECT id, version, publisher_type, published_by, edited_by, change, rule, published_at
  FROM autopilot_rule_version
 WHERE autopilot_id = $1 AND workspace_id = $2 AND ($3::int IS NULL OR version < $3)
 ORDER BY version DESC
 LIMIT $4;
