-- name: find_targets
-- What stands behind webhook tokens: the live trigger and all that admission judges of its rule, at one instant of the database's clock.
SELECT t.token_hash, t.id AS trigger_id, t.rev AS trigger_rev, t.provider, t.event_filters, t.secret_enc,
       CASE WHEN t.previous_secret_until > clock_timestamp() THEN t.previous_secret_enc END AS previous_secret_enc,
       clock_timestamp() AS read_at,
       f.autopilot_id, f.workspace_id, f.autopilot_rev, f.autopilot_status, f.execution_mode, f.overlap_policy,
       f.assignee_type, f.squad_id, f.squad_archived, f.agent_id, f.agent_archived, f.agent_owner_id, f.agent_owner_present,
       f.agent_visibility, f.creator_has_share, f.runtime_id, f.runtime_seen_at, f.runtime_usable, f.runtime_detail,
       f.runtime_repair_hint, f.creator_id, f.rule_owner_id, f.rule_owner_present, f.attribution_policy, f.rule_version,
       f.rule_version_id,
       t.enabled AS trigger_enabled,
       t.published_by AS trigger_publisher_id,
       EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = t.workspace_id AND m.user_id = t.published_by) AS trigger_publisher_present
  FROM autopilot_trigger t
  JOIN admission_facts f ON f.autopilot_id = t.autopilot_id AND f.workspace_id = t.workspace_id
 WHERE t.token_hash = ANY($1::bytea[]) AND t.kind = 'webhook' AND t.deleted_at IS NULL;

-- name: find_triggers
-- The same triggers without any fact of admission, for when those cannot be read (S9.10): enough to know who sends what to whom.
SELECT t.token_hash, t.id AS trigger_id, t.rev AS trigger_rev, t.autopilot_id, t.provider, t.event_filters, t.secret_enc,
       CASE WHEN t.previous_secret_until > clock_timestamp() THEN t.previous_secret_enc END AS previous_secret_enc,
       clock_timestamp() AS read_at
  FROM autopilot_trigger t
 WHERE t.token_hash = ANY($1::bytea[]) AND t.kind = 'webhook' AND t.deleted_at IS NULL;
