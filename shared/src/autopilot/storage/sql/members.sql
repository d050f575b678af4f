-- name: find_user_by_email
-- One person by address, which is kept in lower case.
SELECT id, email, name, created_at FROM app_user WHERE email = $1;

-- name: insert_user
-- A person nobody has named before; none is returned if another transaction was first.
INSERT INTO app_user (id, email, name) VALUES ($1, $2, $3)
ON CONFLICT (email) DO NOTHING
RETURNING id, email, name, created_at;

-- name: insert_member
-- A person's place in a workspace.
INSERT INTO member (workspace_id, user_id, role) VALUES ($1, $2, $3);

-- name: insert_member_if_none
-- A person's place in a workspace, unless they have one.
INSERT INTO member (workspace_id, user_id, role) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: find_member
-- One member of a workspace.
SELECT m.user_id, u.email, u.name, m.role, m.created_at
  FROM member m
  JOIN app_user u ON u.id = m.user_id
 WHERE m.workspace_id = $1 AND m.user_id = $2;

-- name: list_members
-- The members of a workspace, newest person first.
SELECT m.user_id, u.email, u.name, m.role, m.created_at
  FROM member m
  JOIN app_user u ON u.id = m.user_id
 WHERE m.workspace_id = $1
   AND ($2::uuid IS NULL OR m.user_id < $2)
 ORDER BY m.user_id DESC
 LIMIT $3;

-- name: lock_owners_and
-- The owners of a workspace and one more member, held until the transaction ends, so that roles change one by one.
SELECT user_id, role
  FROM member
 WHERE workspace_id = $1 AND (role = 'owner' OR user_id = $2)
 ORDER BY user_id
   FOR NO KEY UPDATE;

-- name: lock_leaver
-- Level 1, whole: whoever wants to make this member creator, publisher or subscriber of something waits.
SELECT user_id FROM member WHERE workspace_id = $1 AND user_id = $2 FOR UPDATE;

-- name: find_role
-- What a person is in a workspace.
SELECT role FROM member WHERE workspace_id = $1 AND user_id = $2;

-- name: delete_member
-- The end of a membership, with its grants, subscriptions and shares by foreign key.
DELETE FROM member WHERE workspace_id = $1 AND user_id = $2;

-- name: set_role
-- Another role for a member.
UPDATE member SET role = $3 WHERE workspace_id = $1 AND user_id = $2;
