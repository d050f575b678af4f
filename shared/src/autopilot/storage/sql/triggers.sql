-- name: lock_triggers
-- Level 3 of the lock order, in id order: the live triggers of rules that the caller has locked.
SELECT id, workspace_id, autopilot_id, kind, label, enabled, rev, published_by, published_version_id, cron, timezone, catch_up,
       lateness_s, next_run_at, schedule_rev, schedule_error, tzdata_version, token_hash, token_enc, token_hint, provider,
       event_filters, pace_per_min, secret_enc, secret_hint, secret_fingerprint, previous_secret_enc, previous_secret_until,
       created_at, updated_at, deleted_at
  FROM autopilot_trigger
 WHERE workspace_id = $1 AND autopilot_id = ANY($2::uuid[]) AND deleted_at IS NULL
 ORDER BY id
   FOR NO KEY UPDATE;

-- name: list_triggers
-- The live triggers of one rule, oldest first, with when each last fired.
SELECT t.id, t.workspace_id, t.autopilot_id, t.kind, t.label, t.enabled, t.rev, t.published_by, t.published_version_id, t.cron,
       t.timezone, t.catch_up, t.lateness_s, t.next_run_at, t.schedule_rev, t.schedule_error, t.tzdata_version, t.token_hash,
       t.token_enc, t.token_hint, t.provider, t.event_filters, t.pace_per_min, t.secret_enc, t.secret_hint, t.secret_fingerprint,
       t.previous_secret_enc, t.previous_secret_until, t.created_at, t.updated_at, t.deleted_at, f.last_fired_at
  FROM autopilot_trigger t
  LEFT JOIN trigger_activity f ON f.trigger_id = t.id
 WHERE t.workspace_id = $1 AND t.autopilot_id = $2 AND t.deleted_at IS NULL
 ORDER BY t.id;

-- name: find_trigger
-- One live trigger, with when it last fired.
SELECT t.id, t.workspace_id, t.autopilot_id, t.kind, t.label, t.enabled, t.rev, t.published_by, t.published_version_id, t.cron,
       t.timezone, t.catch_up, t.lateness_s, t.next_run_at, t.schedule_rev, t.schedule_error, t.tzdata_version, t.token_hash,
       t.token_enc, t.token_hint, t.provider, t.event_filters, t.pace_per_min, t.secret_enc, t.secret_hint, t.secret_fingerprint,
       t.previous_secret_enc, t.previous_secret_until, t.created_at, t.updated_at, t.deleted_at, f.last_fired_at
  FROM autopilot_trigger t
  LEFT JOIN trigger_activity f ON f.trigger_id = t.id
 WHERE t.workspace_id = $1 AND t.id = $2 AND t.deleted_at IS NULL;

-- name: insert_trigger
-- A trigger with the version that brought it.
INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, label, enabled, rev, published_by, published_version_id, cron,
       timezone, catch_up, lateness_s, next_run_at, schedule_rev, schedule_error, tzdata_version, token_hash, token_enc, token_hint,
       provider, event_filters, pace_per_min, secret_enc, secret_hint, secret_fingerprint, previous_secret_enc,
       previous_secret_until, created_at, updated_at, deleted_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27,
        $28, $29, $30, $31);

-- name: update_trigger
-- Every field an edit may change, of a row that the caller has locked.
UPDATE autopilot_trigger
   SET label = $2, enabled = $3, rev = $4, published_by = $5, published_version_id = $6, cron = $7, timezone = $8, catch_up = $9,
       lateness_s = $10, next_run_at = $11, schedule_rev = $12, schedule_error = $13, tzdata_version = $14, token_hash = $15,
       token_enc = $16, token_hint = $17, provider = $18, event_filters = $19, pace_per_min = $20, secret_enc = $21,
       secret_hint = $22, secret_fingerprint = $23, previous_secret_enc = $24, previous_secret_until = $25, updated_at = $26,
       deleted_at = $27
 WHERE id = $1;
