-- name: list_triggers
-- The triggers of a rule as they stand, with those it had at $4 and has no more; or the one named, which may be deleted: its history stays.
SELECT t.id, t.kind, t.label, t.enabled, t.cron, t.timezone, t.catch_up, t.lateness_s, t.next_run_at, t.schedule_error, t.provider,
       t.event_filters, t.pace_per_min, t.published_by, v.version AS published_in, t.created_at, t.updated_at, t.deleted_at
  FROM autopilot_trigger t
  LEFT JOIN autopilot_rule_version v ON v.id = t.published_version_id
 WHERE t.workspace_id = $1 AND t.autopilot_id = $2 
   AND CASE WHEN $3::uuid IS NOT NULL THEN t.id = $3
            ELSE t.deleted_at IS NULL OR (t.created_at <= $4::timestamptz AND t.deleted_at > $4) END
 ORDER BY t.id;

-- name: find_version_at
-- The rule as it was at an instant: its newest version by then.
SELECT v.version, v.publisher_type, v.published_by, v.edited_by, v.change, v.rule, v.published_at
  FROM autopilot_rule_version v
 WHERE v.autopilot_id = $1 AND v.published_at <= $2
 ORDER BY v.version DESC
 LIMIT 1;

-- name: find_version_after
-- The first edit after an instant.
SELECT v.version, v.publisher_type, v.published_by, v.edited_by, v.change, v.rule, v.published_at
  FROM autopilot_rule_version v
 WHERE v.autopilot_id = $1 AND v.published_at > $2
 ORDER BY v.version
 LIMIT 1;

-- name: find_version
-- One version of a rule by its number.
SELECT v.version, v.publisher_type, v.published_by, v.edited_by, v.change, v.rule, v.published_at
  FROM autopilot_rule_version v
 WHERE v.autopilot_id = $1 AND v.version = $2;

-- name: find_status_change
-- The version by which a rule came into the status that it had at an instant: the first behind the last with another. It reads back to that one.
SELECT v.version, v.publisher_type, v.published_by, v.edited_by, v.change, v.rule, v.published_at
  FROM autopilot_rule_version v
 WHERE v.autopilot_id = $1 AND v.published_at <= $3
   AND v.version > coalesce((SELECT o.version
                               FROM autopilot_rule_version o
                              WHERE o.autopilot_id = $1 AND o.published_at <= $3 AND o.rule ->> 'status' <> $2
                              ORDER BY o.version DESC
                              LIMIT 1), 0)
 ORDER BY v.version
 LIMIT 1;

-- name: find_disabling
-- The version by which a trigger was turned off that is off at an instant: the first behind the last that has it on, or not at all.
SELECT v.version, v.publisher_type, v.published_by, v.edited_by, v.change, v.rule, v.published_at
  FROM autopilot_rule_version v
 WHERE v.autopilot_id = $1 AND v.published_at <= $3
   AND v.version > coalesce((SELECT o.version
                               FROM autopilot_rule_version o
                              WHERE o.autopilot_id = $1 AND o.published_at <= $3
                                AND jsonb_path_query_first(o.rule, '$.triggers[*] ? (@.id == $id).enabled',
                                                           jsonb_build_object('id', $2::uuid::text)) IS DISTINCT FROM 'false'
                              ORDER BY o.version DESC
                              LIMIT 1), 0)
 ORDER BY v.version
 LIMIT 1;

-- name: find_plan
-- A trigger's first plan from an instant on, with what came of it.
SELECT e.plan_time, e.state, e.attempts, e.max_attempts, e.next_retry_at, e.runner_id, e.stale_at, e.result, e.error_code, e.error_message,
       e.started_at, e.finished_at
  FROM sys_cron_executions e
 WHERE e.job_name = $1 AND e.scope_kind = 'trigger' AND e.scope_id = $2::uuid::text AND e.plan_time >= $3
 ORDER BY e.plan_time
 LIMIT 1;

-- name: list_planned_runs
-- The runs of triggers for planned times in [$2, $3).
SELECT r.id, r.source, r.status, r.trigger_id, r.planned_at, r.webhook_delivery_id AS delivery_id, r.originator_id, r.created_at, r.reason_code
  FROM autopilot_run r
 WHERE r.trigger_id = ANY($1::uuid[]) AND r.planned_at >= $2 AND r.planned_at < $3
 ORDER BY r.planned_at, r.id
 LIMIT $4;

-- name: list_other_runs
-- The runs of a rule that nothing planned and that were made in [$2, $3): a stretch of the list by ids, which tell their time.
SELECT r.id, r.source, r.status, r.trigger_id, r.planned_at, r.webhook_delivery_id AS delivery_id, r.originator_id, r.created_at, r.reason_code
  FROM autopilot_run r
 WHERE r.autopilot_id = $1 AND r.id >= uuid7_floor($2::timestamptz - interval '1 minute') AND r.id < uuid7_floor($3::timestamptz + interval '1 minute')
   AND r.planned_at IS NULL AND r.created_at >= $2 AND r.created_at < $3 AND ($4::uuid IS NULL OR r.trigger_id = $4)
 ORDER BY r.id
 LIMIT $5;

-- name: list_live_runs
-- What a run of a rule finds in flight: pending or running ones, and issues with an active task (S3.6).
SELECT r.id, r.source, r.status, r.trigger_id, r.planned_at, r.webhook_delivery_id AS delivery_id, r.originator_id, r.created_at, r.reason_code
  FROM autopilot_run r
 WHERE r.autopilot_id = $1 AND r.id <> $2 AND r.completed_at IS NULL
   AND (r.status IN ('pending', 'running')
        OR (r.status = 'issue_created'
            AND EXISTS (SELECT 1 FROM agent_task t WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running'))))
 ORDER BY r.id
 LIMIT $3;

-- name: find_planned_run
-- The newest run that a schedule trigger has made.
SELECT r.id FROM autopilot_run r WHERE r.trigger_id = $1 AND r.planned_at IS NOT NULL ORDER BY r.planned_at DESC LIMIT 1;

-- name: list_deliveries
-- The deliveries of a rule that came in [$2, $3), of one trigger if named.
SELECT d.id, d.trigger_id, d.event, d.status, d.dedupe_key, d.dedupe_source, d.attempt_count, d.run_id, d.reason_code, d.replayed_from,
       d.received_at
  FROM webhook_delivery d
 WHERE d.autopilot_id = $1 AND d.id >= uuid7_floor($2::timestamptz - interval '1 minute') AND d.id < uuid7_floor($3::timestamptz + interval '1 minute')
   AND d.received_at >= $2 AND d.received_at < $3
   AND ($4::uuid IS NULL OR d.trigger_id = $4)
 ORDER BY d.id
 LIMIT $5;

-- name: list_deliveries_near
-- The deliveries of an event to a trigger within ten minutes of one: those with its key first, then the nearest. 500 on either side are looked at.
SELECT d.id, d.trigger_id, d.event, d.status, d.dedupe_key, d.dedupe_source, d.attempt_count, d.run_id, d.reason_code, d.replayed_from,
       d.received_at
  FROM ((SELECT b.id, b.trigger_id, b.event, b.status, b.dedupe_key, b.dedupe_source, b.attempt_count, b.run_id, b.reason_code, b.replayed_from,
                b.received_at
           FROM webhook_delivery b
          WHERE b.trigger_id = $1 AND b.id < $2 AND b.id >= uuid7_floor($3::timestamptz - interval '10 minutes')
          ORDER BY b.id DESC
          LIMIT 500)
         UNION ALL
        (SELECT a.id, a.trigger_id, a.event, a.status, a.dedupe_key, a.dedupe_source, a.attempt_count, a.run_id, a.reason_code, a.replayed_from,
                a.received_at
           FROM webhook_delivery a
          WHERE a.trigger_id = $1 AND a.id > $2 AND a.id < uuid7_floor($3::timestamptz + interval '10 minutes')
          ORDER BY a.id
          LIMIT 500)) d
 WHERE d.event = $4
 ORDER BY d.dedupe_key IS DISTINCT FROM $5::text, abs(extract(epoch FROM d.received_at - $3))
 LIMIT $6;

-- name: find_place
-- Where a pending run, or an undecided delivery, waits; how many are ahead is counted to 10,000.
SELECT 'queued' AS kind, q.claims, q.attempts, q.lease_until, q.last_error, q.enqueued_at, NULL::timestamptz AS available_at,
       (SELECT count(*) FROM (SELECT 1 FROM dispatch_queue b WHERE b.seq < q.seq LIMIT 10000) ahead) AS ahead
  FROM dispatch_queue q
 WHERE q.run_id = $1 OR q.delivery_id = $1
 UNION ALL
SELECT d.kind, d.claims, d.attempts, NULL, d.last_error, d.enqueued_at, d.available_at, 0
  FROM dispatch_deferred d
 WHERE d.run_id = $1 OR d.delivery_id = $1;

-- name: list_tasks
-- The newest tasks of a run and of its issue.
SELECT t.id, t.agent_id, t.status, t.attempt, t.max_attempts, t.available_at, t.expires_at, t.runtime_id, t.lease_until,
       t.cancel_requested_at, t.progress, t.error, t.failure_kind, t.created_at, t.claimed_at, t.finished_at
  FROM agent_task t
 WHERE t.id = ANY (ARRAY(SELECT $1::uuid UNION (SELECT i.id FROM agent_task i WHERE i.issue_id = $2 ORDER BY i.id DESC LIMIT 5)))
 ORDER BY t.id DESC
 LIMIT 5;

-- name: find_station
-- The runtime that an agent's tasks wait for: whether it is heard, what it holds, and how many of the agent's are ahead of a task.
SELECT r.id AS runtime_id, r.name, h.seen_at, coalesce(h.usable, true) AS usable, h.detail, h.repair_hint,
       least(r.concurrency, r.concurrency_limit) AS concurrency,
       (SELECT count(*) FROM agent_task t WHERE t.runtime_id = r.id AND t.status IN ('claimed', 'running')) AS held,
       (SELECT count(*) FROM (SELECT 1 FROM agent_task t WHERE t.agent_id = a.id AND t.status = 'queued' AND t.id < $3 LIMIT 10000) x) AS ahead
  FROM agent a
  LEFT JOIN runtime r ON r.workspace_id = a.workspace_id AND r.id = a.runtime_id AND r.deleted_at IS NULL
  LEFT JOIN runtime_heartbeat h ON h.runtime_id = r.id
 WHERE a.workspace_id = $1 AND a.id = $2;

-- name: list_people
-- Names of people, and whether they are members still.
SELECT u.id, u.name, EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = $1 AND m.user_id = u.id) AS present
  FROM app_user u
 WHERE u.id = ANY($2::uuid[]);

-- name: find_agent_name
-- The name of an agent that $3 may invoke; of a private one nobody else learns that it exists.
SELECT a.name
  FROM agent a
 WHERE a.workspace_id = $1 AND a.id = $2
   AND (a.visibility = 'workspace' OR a.owner_id = $3 OR EXISTS (SELECT 1 FROM agent_share s WHERE s.agent_id = a.id AND s.user_id = $3));
