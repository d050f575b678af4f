-- name: list_secrets
-- A page of everything that is kept encrypted, in id order; read without a lock.
SELECT id, token_enc, secret_enc, previous_secret_enc
  FROM autopilot_trigger
 WHERE ($1::uuid IS NULL OR id > $1)
   AND num_nonnulls(token_enc, secret_enc, previous_secret_enc) > 0
 ORDER BY id
 LIMIT $2;

-- name: replace_secrets
-- The same secrets under another key, only where they are still what was read: an edit meanwhile wins (HAZARDS 27).
UPDATE autopilot_trigger
   SET token_enc = $5, secret_enc = $6, previous_secret_enc = $7
 WHERE id = $1
   AND token_enc IS NOT DISTINCT FROM $2
   AND secret_enc IS NOT DISTINCT FROM $3
   AND previous_secret_enc IS NOT DISTINCT FROM $4
RETURNING id;
