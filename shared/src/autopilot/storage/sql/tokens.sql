-- name: find_access
-- A token with its person's place in the workspace it is bound to, else in the one asked for by id ($2) or slug ($3).
SELECT t.id AS token_id, t.kind, t.user_id, t.created_by, t.workspace_id AS bound_to,
       t.revoked_at IS NULL AND t.expires_at > clock_timestamp() AS live,
       w.id AS workspace_id, w.slug AS workspace_slug, m.role
  FROM api_token t
  LEFT JOIN workspace w
         ON w.id = coalesce(t.workspace_id, $2::uuid, (SELECT x.id FROM workspace x WHERE x.slug = $3::text))
  LEFT JOIN member m ON m.workspace_id = w.id AND m.user_id = t.user_id
 WHERE t.token_hash = $1;

-- name: insert_token
-- A new token that lives for $8 days; only its hash is kept.
INSERT INTO api_token (id, kind, name, token_hash, hint, user_id, workspace_id, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $9, clock_timestamp() + make_interval(days => $8))
RETURNING id, kind, name, hint, user_id, workspace_id, created_by, created_at, expires_at, revoked_at;

-- name: list_tokens
-- A person's own tokens ($1; of one workspace only if $2) and, if $3 is given, those of that workspace's programs.
SELECT id, kind, name, hint, user_id, workspace_id, created_by, created_at, expires_at, revoked_at
  FROM api_token
 WHERE ((user_id = $1 AND ($2::uuid IS NULL OR workspace_id = $2))
        OR (kind <> 'personal' AND workspace_id = $3::uuid))
   AND ($4::uuid IS NULL OR id < $4)
 ORDER BY id DESC
 LIMIT $5;

-- name: find_token
-- One token by id.
SELECT id, kind, name, hint, user_id, workspace_id, created_by, created_at, expires_at, revoked_at
  FROM api_token
 WHERE id = $1;

-- name: revoke_token
-- Never again; the first time stands.
UPDATE api_token SET revoked_at = clock_timestamp() WHERE id = $1 AND revoked_at IS NULL;
