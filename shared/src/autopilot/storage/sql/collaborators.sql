-- name: list_collaborators
-- Who may write the rules beside creator and admins, by rule.
SELECT c.autopilot_id, c.user_id, u.name, c.granted_by, c.created_at
  FROM autopilot_collaborator c
  JOIN app_user u ON u.id = c.user_id
 WHERE c.autopilot_id = ANY($1::uuid[])
 ORDER BY c.autopilot_id, c.created_at, c.user_id;

-- name: is_collaborator
-- Whether one person may write one rule as a collaborator.
SELECT EXISTS (SELECT 1 FROM autopilot_collaborator WHERE autopilot_id = $1 AND user_id = $2);

-- name: insert_collaborator
-- Granted once; the first grant stands.
INSERT INTO autopilot_collaborator (workspace_id, autopilot_id, user_id, granted_by) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: delete_collaborator
-- Revoked, or never granted.
DELETE FROM autopilot_collaborator WHERE autopilot_id = $1 AND user_id = $2;
