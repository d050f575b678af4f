-- name: find_runtime
-- One runtime that was not deleted, with its last heartbeat; online means one within $3 seconds.
SELECT r.id, r.workspace_id, r.name, r.registered_by, r.concurrency, r.capabilities, r.created_at,
       h.seen_at, coalesce(h.seen_at >= clock_timestamp() - make_interval(secs => $3), false) AS online,
       coalesce(h.usable, true) AS usable, h.detail, h.repair_hint
  FROM runtime r
  LEFT JOIN runtime_heartbeat h ON h.runtime_id = r.id
 WHERE r.workspace_id = $1 AND r.id = $2 AND r.deleted_at IS NULL;

-- name: list_runtimes
-- The runtimes of a workspace that were not deleted, newest first.
SELECT r.id, r.workspace_id, r.name, r.registered_by, r.concurrency, r.capabilities, r.created_at,
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
