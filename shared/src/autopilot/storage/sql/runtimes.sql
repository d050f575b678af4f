-- name: find_runtime
-- One runtime that was not deleted, with its last heartbeat; online means one within $3 seconds.
SELECT r.id, r.workspace_id, r.name, r.registered_by, r.concurrency, r.concurrency_limit, r.capabilities, r.created_at, r.rev,
       h.seen_at, coalesce(h.seen_at >= clock_timestamp() - make_interval(secs => $3), false) AS online,
       coalesce(h.usable, true) AS usable, h.detail, h.repair_hint
  FROM runtime r
  LEFT JOIN runtime_heartbeat h ON h.runtime_id = r.id
 WHERE r.workspace_id = $1 AND r.id = $2 AND r.deleted_at IS NULL;

-- name: list_runtimes
-- The runtimes of a workspace that were not deleted, newest first.
SELECT r.id, r.workspace_id, r.name, r.registered_by, r.concurrency, r.concurrency_limit, r.capabilities, r.created_at, r.rev,
       h.seen_at, coalesce(h.seen_at >= clock_timestamp() - make_interval(secs => $2), false) AS online,
       coalesce(h.usable, true) AS usable, h.detail, h.repair_hint
  FROM runtime r
  LEFT JOIN runtime_heartbeat h ON h.runtime_id = r.id
 WHERE r.workspace_id = $1 AND r.deleted_at IS NULL
   AND ($3::uuid IS NULL OR r.id < $3)
 ORDER BY r.id DESC
 LIMIT $4;

-- name: hold_runtime
-- Keep a runtime from being deleted while an agent is bound to it; no row if it is gone.
SELECT id FROM runtime WHERE workspace_id = $1 AND id = $2 AND deleted_at IS NULL FOR SHARE;

-- name: lock_runtime
-- Level 1: hold a runtime for an edit; read it in a later statement.
SELECT id FROM runtime WHERE workspace_id = $1 AND id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE;

-- name: update_runtime
-- What people call a runtime, and how many tasks they allow it; its machine goes on under the name that it knows. The same values are no edit.
UPDATE runtime
   SET registered_as = CASE WHEN name = $2 THEN registered_as ELSE nullif(coalesce(registered_as, name), $2) END,
       name = $2, concurrency_limit = $3, rev = rev + 1
 WHERE id = $1 AND (name, concurrency_limit) IS DISTINCT FROM ($2, $3);

-- name: unbind_agents
-- The agents of a runtime that goes, locked in id order and bound to nothing; the archived ones too.
WITH bound AS MATERIALIZED (
    SELECT id FROM agent WHERE workspace_id = $1 AND runtime_id = $2 ORDER BY id FOR NO KEY UPDATE
)
UPDATE agent a SET runtime_id = NULL, rev = a.rev + 1 FROM bound b WHERE a.id = b.id
RETURNING a.id;

-- name: delete_runtime
-- Out of use, with its row kept for what names it, and offline at once.
WITH gone AS (DELETE FROM runtime_heartbeat WHERE runtime_id = $1)
UPDATE runtime SET deleted_at = clock_timestamp() WHERE id = $1 AND deleted_at IS NULL;
