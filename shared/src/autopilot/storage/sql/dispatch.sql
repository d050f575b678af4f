-- name: load_runs
-- What dispatch needs to know of each pending run itself: its trigger as it is now, and the event that a webhook brought.
SELECT r.id, r.workspace_id, r.autopilot_id, r.source, r.execution_mode, r.rule_version_id, r.rule_version, r.planned_at,
       r.created_at, r.originator_id, r.event, r.payload,
       t.id AS trigger_id, t.kind AS trigger_kind, t.label AS trigger_label, t.timezone AS trigger_timezone,
       t.published_by AS trigger_publisher_id,
       EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = r.workspace_id AND m.user_id = t.published_by) AS trigger_publisher_present,
       d.id AS delivery_id, d.provider, d.event AS delivery_event, d.content_type, d.received_at, b.body, b.raw_size
  FROM unnest($1::uuid[]) AS k (id)
  JOIN autopilot_run r ON r.id = k.id AND r.status = 'pending'
  LEFT JOIN autopilot_trigger t ON t.id = r.trigger_id AND t.workspace_id = r.workspace_id
  LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
  LEFT JOIN webhook_body b ON b.delivery_id = d.id;

-- name: load_rules
-- What was fixed at admission, by rule version, with what is looked at anew (S3.7): who would execute now, who may answer, the project, the
-- subscribers.
SELECT v.id AS rule_version_id, v.rule, a.creator_id, a.rule_owner_id, a.project_id, w.attribution_policy, w.issue_prefix,
       EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = a.workspace_id AND m.user_id = a.rule_owner_id) AS rule_owner_present,
       ARRAY(SELECT s.user_id FROM autopilot_subscriber s WHERE s.autopilot_id = a.id ORDER BY s.user_id) AS subscribers,
       x.squad_archived, x.agent_id, x.agent_archived, x.agent_owner_id, x.agent_owner_present, x.agent_visibility,
       x.creator_has_share, x.runtime_id, x.runtime_seen_at, x.runtime_usable, x.runtime_detail, x.runtime_repair_hint,
       clock_timestamp() AS read_at
  FROM unnest($1::uuid[]) AS k (id)
  JOIN autopilot_rule_version v ON v.id = k.id
  JOIN autopilot a ON a.id = v.autopilot_id
  JOIN workspace w ON w.id = a.workspace_id
 CROSS JOIN LATERAL executor_facts(
       a.workspace_id, v.rule ->> 'assignee_type',
       CASE v.rule ->> 'assignee_type' WHEN 'agent' THEN (v.rule ->> 'assignee_id')::uuid END,
       CASE v.rule ->> 'assignee_type' WHEN 'squad' THEN (v.rule ->> 'assignee_id')::uuid END,
       a.creator_id) x;

-- name: load_shares
-- Which of these (agent, person) pairs are shared with the person (S4.4).
SELECT s.agent_id, s.user_id
  FROM unnest($1::uuid[], $2::uuid[]) AS k (agent_id, user_id)
  JOIN agent_share s ON s.agent_id = k.agent_id AND s.user_id = k.user_id;

-- name: lock_projects
-- Level 1 of the lock order: the projects that still exist, kept until the issues in them are committed.
SELECT id FROM project WHERE id = ANY($1::uuid[]) ORDER BY id FOR KEY SHARE;

-- name: take_issue_numbers
-- The last lock of a dispatch: so many numbers for each workspace; answers the highest.
INSERT INTO workspace_counter (workspace_id, last_issue_number)
SELECT g.workspace_id, g.wanted FROM unnest($1::uuid[], $2::bigint[]) AS g (workspace_id, wanted)
 ORDER BY g.workspace_id
    ON CONFLICT (workspace_id) DO UPDATE
   SET last_issue_number = workspace_counter.last_issue_number + excluded.last_issue_number
RETURNING workspace_id, last_issue_number;

-- name: insert_issues
-- The issues of a batch.
INSERT INTO issue (id, workspace_id, number, title, body, status, assignee_type, assignee_id, creator_type, creator_id, project_id,
       origin_autopilot_id, origin_run_id)
SELECT g.id, g.workspace_id, g.number, g.title, g.body, 'todo', g.assignee_type, g.assignee_id, 'agent', g.creator_id, g.project_id,
       g.autopilot_id, g.run_id
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::uuid[], $9::uuid[],
              $10::uuid[], $11::uuid[])
    AS g (id, workspace_id, number, title, body, assignee_type, assignee_id, creator_id, project_id, autopilot_id, run_id);

-- name: insert_subscribers
-- The rule's subscribers follow the issue and are told in their inbox (S3.1).
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::text[])
        AS g (item_id, workspace_id, issue_id, user_id, autopilot_id, run_id, title)
), followed AS (
    INSERT INTO issue_subscriber (issue_id, user_id, workspace_id, reason)
    SELECT g.issue_id, g.user_id, g.workspace_id, 'autopilot' FROM given g
)
INSERT INTO inbox_item (id, workspace_id, user_id, kind, title, autopilot_id, run_id, issue_id)
SELECT g.item_id, g.workspace_id, g.user_id, 'issue_created', g.title, g.autopilot_id, g.run_id, g.issue_id FROM given g;

-- name: insert_tasks
-- The tasks of a batch: those of issues are tried three times, a bare one once and not after its expiry.
INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, run_id, autopilot_id, accountable_id, prompt, status, max_attempts, expires_at)
SELECT g.id, g.workspace_id, g.agent_id, g.issue_id, g.run_id, g.autopilot_id, g.accountable_id, g.prompt, 'queued', g.max_attempts,
       clock_timestamp() + g.expires_in_s * interval '1 second'
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[], $9::int[], $10::float8[])
    AS g (id, workspace_id, agent_id, issue_id, run_id, autopilot_id, accountable_id, prompt, max_attempts, expires_in_s);
