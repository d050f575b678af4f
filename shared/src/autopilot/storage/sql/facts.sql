-- name: load_snapshots
-- The facts admission judges, for (autopilot, trigger or null) pairs; a trigger of another autopilot or a deleted one is not enabled.
-- Those of a rule are gathered once, however many of its triggers are asked for (OFFSET keeps them from being joined into the pairs).
SELECT k.autopilot_id AS key_autopilot_id,
       k.trigger_id AS key_trigger_id,
       f.autopilot_id, f.workspace_id, f.autopilot_rev, f.autopilot_status, f.execution_mode, f.overlap_policy,
       f.assignee_type, f.squad_id, f.squad_archived, f.agent_id, f.agent_archived, f.agent_owner_id, f.agent_owner_present,
       f.agent_visibility, f.creator_has_share, f.runtime_id, f.runtime_seen_at, f.runtime_usable, f.runtime_detail,
       f.runtime_repair_hint, f.creator_id, f.rule_owner_id, f.rule_owner_present, f.attribution_policy, f.rule_version,
       f.rule_version_id,
       coalesce(t.enabled AND t.deleted_at IS NULL, false) AS trigger_enabled,
       t.published_by AS trigger_publisher_id,
       EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = f.workspace_id AND m.user_id = t.published_by) AS trigger_publisher_present
  FROM unnest($1::uuid[], $2::uuid[]) AS k (autopilot_id, trigger_id)
  JOIN (SELECT v.*
          FROM (SELECT DISTINCT autopilot_id FROM unnest($1::uuid[]) AS u (autopilot_id)) one
          JOIN admission_facts v ON v.autopilot_id = one.autopilot_id
        OFFSET 0) f ON f.autopilot_id = k.autopilot_id
  LEFT JOIN autopilot_trigger t ON t.id = k.trigger_id AND t.autopilot_id = f.autopilot_id;

-- name: clicker_has_share
-- Whether the agent that would execute this autopilot now is shared with a person.
SELECT EXISTS (SELECT 1 FROM admission_facts f JOIN agent_share s ON s.agent_id = f.agent_id AND s.user_id = $2
                WHERE f.autopilot_id = $1);

-- name: read_overlap
-- What is in flight for autopilots whose rows the caller has locked (S3.6): pending or running, or an issue with an active task.
SELECT a.id AS autopilot_id,
       EXISTS (SELECT 1 FROM autopilot_run r
                WHERE r.autopilot_id = a.id AND r.completed_at IS NULL
                  AND (r.status IN ('pending', 'running')
                       OR (r.status = 'issue_created'
                           AND EXISTS (SELECT 1 FROM agent_task t
                                        WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running'))))) AS live,
       EXISTS (SELECT 1 FROM dispatch_deferred d WHERE d.autopilot_id = a.id AND d.kind = 'parked') AS parked
  FROM unnest($1::uuid[]) AS a (id);

-- name: hold_started
-- Level 6: whatever is at work for rules that the caller has locked cannot end before this transaction does. Whoever ends a run
-- of a rule that had no policy when they began has not locked the rule.
SELECT r.id FROM autopilot_run r
 WHERE r.autopilot_id = ANY($1::uuid[]) AND r.completed_at IS NULL AND r.status IN ('issue_created', 'running')
   AND (r.status = 'running'
        OR EXISTS (SELECT 1 FROM agent_task t WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running')))
 ORDER BY r.id
   FOR SHARE OF r;

-- name: lock_autopilots
-- Level 2 of the lock order, in id order; later statements decide on what is true after the wait.
SELECT id FROM autopilot WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: database_now
-- The database's clock, which alone decides durable time (S1.4).
SELECT clock_timestamp();
