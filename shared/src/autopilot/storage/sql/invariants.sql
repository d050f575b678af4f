-- Each query returns the rows that break one rule: none, at any instant, on one snapshot. What a constraint already makes
-- impossible (one active task an issue, one parked run a rule, most of attribution) has no query here.
-- What is live is looked at whole; what is history only where its id was made in the last 12 hours, which bounds the scan
-- and never meets what retention removes.

-- name: pending_has_one_entry
-- 1: a pending run has exactly one entry, in the queue or deferred.
SELECT r.id::text AS subject, format('is pending with %s entries', count(e.run_id)) AS detail
  FROM autopilot_run r
  LEFT JOIN (SELECT run_id FROM dispatch_queue UNION ALL SELECT run_id FROM dispatch_deferred) e ON e.run_id = r.id
 WHERE r.completed_at IS NULL AND r.status = 'pending'
 GROUP BY r.id
HAVING count(e.run_id) <> 1
 LIMIT 20;

-- name: undecided_delivery_has_one_entry
-- 1: so has a delivery that is queued without a run (S9.15).
SELECT d.id::text AS subject, format('is undecided with %s entries', count(e.delivery_id)) AS detail
  FROM webhook_delivery d
  LEFT JOIN (SELECT delivery_id FROM dispatch_queue UNION ALL SELECT delivery_id FROM dispatch_deferred) e ON e.delivery_id = d.id
 WHERE d.status = 'queued' AND d.run_id IS NULL AND d.id >= uuid7_floor(now() - interval '12 hours')
 GROUP BY d.id
HAVING count(e.delivery_id) <> 1
 LIMIT 20;

-- name: entry_has_its_run
-- 2: an entry of a run belongs to a pending one, and names its rule and trigger.
SELECT e.run_id::text AS subject,
       CASE WHEN r.id IS NULL THEN 'has an entry but does not exist'
            WHEN r.status <> 'pending' THEN format('has an entry but is %s', r.status)
            ELSE 'has an entry that names another rule or trigger' END AS detail
  FROM (SELECT run_id, autopilot_id, trigger_id FROM dispatch_queue
        UNION ALL SELECT run_id, autopilot_id, trigger_id FROM dispatch_deferred) e
  LEFT JOIN autopilot_run r ON r.id = e.run_id
 WHERE e.run_id IS NOT NULL
   AND (r.id IS NULL OR r.status <> 'pending' OR r.autopilot_id <> e.autopilot_id OR r.trigger_id IS DISTINCT FROM e.trigger_id)
 LIMIT 20;

-- name: entry_has_its_delivery
-- 2: an entry of a delivery belongs to an undecided one, and names its rule and trigger.
SELECT e.delivery_id::text AS subject,
       CASE WHEN d.id IS NULL THEN 'has an entry but does not exist'
            WHEN d.status <> 'queued' OR d.run_id IS NOT NULL
            THEN format('has an entry but is %s, run %s', d.status, coalesce(d.run_id::text, 'none'))
            ELSE 'has an entry that names another rule or trigger' END AS detail
  FROM (SELECT delivery_id, autopilot_id, trigger_id FROM dispatch_queue
        UNION ALL SELECT delivery_id, autopilot_id, trigger_id FROM dispatch_deferred) e
  LEFT JOIN webhook_delivery d ON d.id = e.delivery_id
 WHERE e.delivery_id IS NOT NULL
   AND (d.id IS NULL OR d.status <> 'queued' OR d.run_id IS NOT NULL
        OR (d.autopilot_id, d.trigger_id) IS DISTINCT FROM (e.autopilot_id, e.trigger_id))
 LIMIT 20;

-- name: delivery_agrees_with_its_run
-- 3: queued while the run is pending, failed when it ended without a start, else dispatched (S10.4).
SELECT d.id::text AS subject, format('is %s while run %s is %s', d.status, r.id, r.status) AS detail
  FROM autopilot_run r
  JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
 WHERE (r.completed_at IS NULL OR r.id >= uuid7_floor(now() - interval '12 hours'))
   AND d.status <> CASE WHEN r.status = 'pending' THEN 'queued'
                        WHEN r.status = 'failed' AND r.started_at IS NULL THEN 'failed'
                        ELSE 'dispatched' END
 LIMIT 20;

-- name: delivery_without_run_says_why
-- 3: one that failed without ever having a run was given up undecided (S9.15).
SELECT d.id::text AS subject, format('failed without a run, for %s', d.reason_code) AS detail
  FROM webhook_delivery d
 WHERE d.run_id IS NULL AND d.status = 'failed' AND d.reason_code <> 'internal_error' AND d.id >= uuid7_floor(now() - interval '12 hours')
 LIMIT 20;

-- name: replay_repeats_its_original
-- 3: a replay has no dedupe key, and its original is still there, of the same rule and trigger, and was not rejected (S9.11).
SELECT p.id::text AS subject,
       CASE WHEN o.id IS NULL THEN 'is a replay of a delivery that is gone'
            WHEN p.dedupe_key IS NOT NULL THEN 'is a replay with a dedupe key'
            ELSE format('is a replay of %s, which is %s and may be of another rule or trigger', o.id, o.status) END AS detail
  FROM webhook_delivery p
  LEFT JOIN webhook_delivery o ON o.id = p.replayed_from
 WHERE p.replayed_from IS NOT NULL AND p.id >= uuid7_floor(now() - interval '12 hours')
   AND (o.id IS NULL OR p.dedupe_key IS NOT NULL OR o.status = 'rejected'
        OR (o.workspace_id, o.autopilot_id, o.trigger_id) IS DISTINCT FROM (p.workspace_id, p.autopilot_id, p.trigger_id))
 LIMIT 20;

-- name: slot_is_held_by_its_delivery
-- 3: a dedupe slot belongs to a delivery of that key which is still good for something (S9.7).
SELECT s.delivery_id::text AS subject,
       CASE WHEN d.id IS NULL THEN 'holds a slot but does not exist'
            ELSE format('holds the slot of key %s, has key %s and is %s, run %s', s.dedupe_key, d.dedupe_key, d.status, r.status) END AS detail
  FROM webhook_dedupe s
  LEFT JOIN webhook_delivery d ON d.id = s.delivery_id
  LEFT JOIN autopilot_run r ON r.id = d.run_id
 WHERE s.delivery_id >= uuid7_floor(now() - interval '12 hours')
   AND (d.id IS NULL OR d.trigger_id <> s.trigger_id OR d.dedupe_key IS DISTINCT FROM s.dedupe_key
        OR d.status NOT IN ('queued', 'dispatched') OR r.status = 'skipped')
 LIMIT 20;

-- name: delivery_holds_its_slot
-- 3: and such a delivery holds it, unless it is a replay (S9.7, S9.11).
SELECT d.id::text AS subject, format('is %s with key %s but holds no slot', d.status, d.dedupe_key) AS detail
  FROM webhook_delivery d
  LEFT JOIN autopilot_run r ON r.id = d.run_id
 WHERE d.id >= uuid7_floor(now() - interval '12 hours')
   AND d.status IN ('queued', 'dispatched') AND d.dedupe_key IS NOT NULL AND d.replayed_from IS NULL
   AND r.status IS DISTINCT FROM 'skipped'
   AND NOT EXISTS (SELECT 1 FROM webhook_dedupe s WHERE s.delivery_id = d.id)
 LIMIT 20;

-- name: running_has_live_task
-- 4: a running run has a task that is not over.
SELECT r.id::text AS subject, format('is running, its task is %s', coalesce(t.status, 'gone')) AS detail
  FROM autopilot_run r
  LEFT JOIN agent_task t ON t.id = r.task_id
 WHERE r.completed_at IS NULL AND r.status = 'running' AND (t.id IS NULL OR t.status NOT IN ('queued', 'claimed', 'running'))
 LIMIT 20;

-- name: issue_created_has_open_issue
-- 4: an issue_created run has an issue whose state does not end the run (S11.1).
SELECT r.id::text AS subject, format('is issue_created, its issue is %s', coalesce(i.status, 'gone')) AS detail
  FROM autopilot_run r
  LEFT JOIN issue i ON i.id = r.issue_id
 WHERE r.completed_at IS NULL AND r.status = 'issue_created' AND (i.id IS NULL OR i.status NOT IN ('backlog', 'todo', 'in_progress'))
 LIMIT 20;

-- name: run_links_agree
-- 5: rule, trigger, issue, task and delivery of a run are of its workspace and point back to it.
SELECT r.id::text AS subject,
       CASE WHEN a.id IS NULL OR a.workspace_id <> r.workspace_id THEN 'is of another workspace than its rule'
            WHEN r.trigger_id IS NOT NULL AND g.autopilot_id IS DISTINCT FROM r.autopilot_id THEN 'has a trigger of another rule'
            WHEN i.origin_run_id IS DISTINCT FROM r.id AND i.id IS NOT NULL THEN 'has an issue that names another run'
            WHEN i.workspace_id <> r.workspace_id OR i.origin_autopilot_id <> r.autopilot_id THEN 'has an issue of another rule'
            WHEN r.task_id IS NOT NULL AND t.id IS NULL THEN 'has a task that does not exist'
            WHEN t.run_id IS DISTINCT FROM r.id AND t.id IS NOT NULL THEN 'has a task that names another run'
            WHEN t.workspace_id <> r.workspace_id OR t.issue_id IS DISTINCT FROM r.issue_id THEN 'has a task of another issue'
            WHEN d.id IS NULL THEN 'has a delivery that does not exist'
            ELSE 'has a delivery that names another run or trigger' END AS detail
  FROM autopilot_run r
  LEFT JOIN autopilot a ON a.id = r.autopilot_id
  LEFT JOIN autopilot_trigger g ON g.id = r.trigger_id
  LEFT JOIN issue i ON i.id = r.issue_id
  LEFT JOIN agent_task t ON t.id = r.task_id
  LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
 WHERE (r.completed_at IS NULL OR r.id >= uuid7_floor(now() - interval '12 hours'))
   AND (a.id IS NULL OR a.workspace_id <> r.workspace_id
        OR (r.trigger_id IS NOT NULL AND g.autopilot_id IS DISTINCT FROM r.autopilot_id)
        OR (i.id IS NOT NULL AND (i.origin_run_id, i.origin_autopilot_id, i.workspace_id)
                                 IS DISTINCT FROM (r.id, r.autopilot_id, r.workspace_id))
        OR (r.task_id IS NOT NULL AND (t.run_id, t.workspace_id, t.issue_id) IS DISTINCT FROM (r.id, r.workspace_id, r.issue_id))
        OR (r.webhook_delivery_id IS NOT NULL
            AND (d.run_id, d.autopilot_id, d.trigger_id) IS DISTINCT FROM (r.id, r.autopilot_id, r.trigger_id)))
 LIMIT 20;

-- name: run_is_linked_back
-- 5: an issue, task or delivery that names a run is named by it.
SELECT x.id::text AS subject, format('is a %s of run %s, which does not name it', x.kind, x.run_id) AS detail
  FROM (SELECT 'issue' AS kind, i.id, i.origin_run_id AS run_id FROM issue i
         WHERE i.origin_run_id IS NOT NULL AND i.id >= uuid7_floor(now() - interval '12 hours')
         UNION ALL
        SELECT CASE WHEN t.issue_id IS NULL THEN 'task' ELSE 'issue task' END, t.id, t.run_id FROM agent_task t
         WHERE t.run_id IS NOT NULL AND t.id >= uuid7_floor(now() - interval '12 hours')
         UNION ALL
        SELECT 'delivery', d.id, d.run_id FROM webhook_delivery d
         WHERE d.run_id IS NOT NULL AND d.id >= uuid7_floor(now() - interval '12 hours')) x
  LEFT JOIN autopilot_run r ON r.id = x.run_id
 WHERE CASE x.kind WHEN 'issue' THEN r.issue_id
                   WHEN 'task' THEN r.task_id
                   WHEN 'issue task' THEN (SELECT t.id FROM agent_task t WHERE t.id = x.id AND t.issue_id = r.issue_id)
                   ELSE r.webhook_delivery_id END IS DISTINCT FROM x.id
 LIMIT 20;

-- name: bare_task_ends_with_its_run
-- 5: no task of a run_only run outlives the run.
SELECT t.id::text AS subject, format('is %s, its run is %s', t.status, coalesce(r.status, 'gone')) AS detail
  FROM agent_task t
  LEFT JOIN autopilot_run r ON r.id = t.run_id
 WHERE t.status IN ('queued', 'claimed', 'running') AND t.issue_id IS NULL AND r.status IS DISTINCT FROM 'running'
 LIMIT 20;

-- name: issue_task_ends_with_its_issue
-- 5: closing or deleting an issue cancels its live tasks, or asks their runtime to let go (S11.6).
SELECT t.id::text AS subject, format('is %s, its issue is %s', t.status, coalesce(i.status, 'gone')) AS detail
  FROM agent_task t
  LEFT JOIN issue i ON i.id = t.issue_id
 WHERE t.status IN ('queued', 'claimed', 'running') AND t.issue_id IS NOT NULL AND t.cancel_requested_at IS NULL
   AND (i.id IS NULL OR i.status IN ('done', 'cancelled'))
 LIMIT 20;

-- name: overlap_policy_holds
-- 6: of a rule that allows no overlap, no second schedule run is let through while the first is in flight (S3.6). Looked at
-- for runs of the current version only, since an earlier one may have had another policy; a first task that is live was
-- live all the time since the run started.
SELECT a.id::text AS subject, format('is %s but has %s schedule runs in flight', a.overlap_policy, count(*)) AS detail
  FROM autopilot a
  JOIN autopilot_run r ON r.autopilot_id = a.id
 WHERE a.overlap_policy <> 'allow'
   AND r.source = 'schedule' AND r.completed_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM dispatch_deferred p WHERE p.run_id = r.id AND p.kind = 'parked')
   AND (r.status <> 'issue_created'
        OR EXISTS (SELECT 1 FROM agent_task t WHERE t.id = r.task_id AND t.status IN ('queued', 'claimed', 'running')))
 GROUP BY a.id
HAVING count(*) > 1 AND count(*) FILTER (WHERE r.rule_version = a.version) > 0
 LIMIT 20;

-- name: parked_waits_for_a_live_run
-- 6: a parked run is a schedule's and waits for another run of its rule that is in flight (HAZARDS 3).
SELECT p.run_id::text AS subject, 'is parked but nothing of its rule is in flight, or is no schedule run' AS detail
  FROM dispatch_deferred p
  LEFT JOIN autopilot_run w ON w.id = p.run_id
 WHERE p.kind = 'parked'
   AND (w.source IS DISTINCT FROM 'schedule'
        OR NOT EXISTS (
            SELECT 1 FROM autopilot_run r
             WHERE r.autopilot_id = p.autopilot_id AND r.id <> p.run_id AND r.completed_at IS NULL
               AND (r.status IN ('pending', 'running')
                    OR (r.status = 'issue_created'
                        AND EXISTS (SELECT 1 FROM agent_task t
                                     WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running'))))))
 LIMIT 20;

-- name: issue_numbers_dense
-- 7: a workspace's issues, those since deleted counted in, are numbered from 1 to its counter.
SELECT i.workspace_id::text AS subject,
       format('has %s issues up to number %s and %s deleted ones, its counter is %s', coalesce(i.issues, 0), coalesce(i.last, 0),
              coalesce(c.deleted_issues, 0), coalesce(c.last_issue_number::text, 'missing')) AS detail
  FROM (SELECT workspace_id, count(*) AS issues, max(number) AS last FROM issue GROUP BY workspace_id) i
  FULL JOIN workspace_counter c ON c.workspace_id = i.workspace_id
 WHERE coalesce(i.issues, 0) + coalesce(c.deleted_issues, 0) <> coalesce(c.last_issue_number, 0)
    OR coalesce(i.last, 0) > coalesce(c.last_issue_number, 0)
 LIMIT 20;

-- name: events_match_runs
-- 8: one run.started for a start, one run.done for an end, in that order (S2.5).
SELECT r.id::text AS subject,
       format('is %s, was started %s; events in order: %s', r.status, coalesce(r.started_at::text, 'never'),
              coalesce(string_agg(e.kind, ', ' ORDER BY e.waiting, e.place), 'none')) AS detail
  FROM autopilot_run r
  LEFT JOIN (SELECT run_id, kind, false AS waiting, seq AS place FROM run_event
              WHERE run_id >= uuid7_floor(now() - interval '12 hours')
              UNION ALL SELECT run_id, kind, true, id FROM run_event_outbox) e ON e.run_id = r.id
 WHERE r.id >= uuid7_floor(now() - interval '12 hours')
 GROUP BY r.id
HAVING coalesce(array_agg(e.kind ORDER BY e.waiting, e.place) FILTER (WHERE e.kind IS NOT NULL), '{}')
       <> array_remove(ARRAY[CASE WHEN r.started_at IS NOT NULL THEN 'run.started' END,
                             CASE WHEN r.completed_at IS NOT NULL THEN 'run.done' END], NULL)
 LIMIT 20;

-- name: event_has_its_run
-- 8: an event tells of a run that is there, under that run's rule and workspace.
SELECT e.event_id::text AS subject, format('%s tells of run %s, which is gone or of another rule', e.kind, e.run_id) AS detail
  FROM (SELECT event_id, run_id, kind, autopilot_id, workspace_id FROM run_event
         WHERE run_id >= uuid7_floor(now() - interval '12 hours')
         UNION ALL SELECT event_id, run_id, kind, autopilot_id, workspace_id FROM run_event_outbox) e
  LEFT JOIN autopilot_run r ON r.id = e.run_id
 WHERE (r.autopilot_id, r.workspace_id) IS DISTINCT FROM (e.autopilot_id, e.workspace_id)
 LIMIT 20;

-- name: event_seq_dense
-- 9: a workspace's events, the newest 10,000 looked at, end at its head and have no hole; the oldest go by retention.
SELECT w.id::text AS subject,
       format('has %s events numbered %s to %s, its head is %s', e.events, e.first, e.last, coalesce(h.last_seq::text, 'missing')) AS detail
  FROM workspace w
  LEFT JOIN event_head h ON h.workspace_id = w.id
 CROSS JOIN LATERAL (
    SELECT count(*) AS events, min(seq) AS first, max(seq) AS last FROM run_event v
     WHERE v.workspace_id = w.id AND v.seq > coalesce(h.last_seq, 0) - 10000) e
 WHERE e.events > 0 AND (e.last IS DISTINCT FROM h.last_seq OR e.events <> e.last - e.first + 1)
 LIMIT 20;

-- name: next_run_only_while_live
-- 10: a trigger of a rule that is not active has no next run (the trigger's own state is a constraint).
SELECT t.id::text AS subject, format('has its next run at %s, its rule is %s', t.next_run_at, a.status) AS detail
  FROM autopilot_trigger t
  JOIN autopilot a ON a.id = t.autopilot_id
 WHERE t.next_run_at IS NOT NULL AND a.status <> 'active'
 LIMIT 20;

-- name: live_schedule_has_next_run
-- 10: a live, valid schedule has a next run, unless day and month are both restricted: only such an expression may never fire.
SELECT t.id::text AS subject, format('is live with cron %s but has no next run', t.cron) AS detail
  FROM autopilot_trigger t
  JOIN autopilot a ON a.id = t.autopilot_id
 WHERE t.kind = 'schedule' AND t.next_run_at IS NULL AND t.schedule_error IS NULL
   AND t.enabled AND t.deleted_at IS NULL AND a.status = 'active'
   AND ((regexp_split_to_array(btrim(t.cron), '\s+'))[3] IN ('*', '?') OR (regexp_split_to_array(btrim(t.cron), '\s+'))[4] IN ('*', '?'))
 LIMIT 20;

-- name: finished_plan_has_its_run
-- 11: a schedule plan that succeeded, or is out of attempts, has its run, unless it was no longer due (S7.8).
SELECT e.id::text AS subject, format('%s of trigger %s at %s has no run', e.state, e.scope_id, e.plan_time) AS detail
  FROM sys_cron_executions e
 WHERE e.job_name = 'autopilot_schedule_dispatch' AND e.id >= uuid7_floor(now() - interval '12 hours')
   AND (e.state = 'SUCCESS' OR (e.state = 'FAILED' AND e.attempts >= e.max_attempts))
   AND e.result ->> 'outcome' IS DISTINCT FROM 'not_due'
   AND NOT EXISTS (
        SELECT 1 FROM autopilot_run r
         WHERE r.trigger_id = CASE WHEN e.scope_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN e.scope_id::uuid END
           AND r.planned_at = e.plan_time)
 LIMIT 20;

-- name: scheduled_run_has_its_plan
-- 11: a schedule run has its plan, unless a clean run took its place (S7.12).
SELECT r.id::text AS subject, format('is planned at %s by trigger %s without an execution', r.planned_at, r.trigger_id) AS detail
  FROM autopilot_run r
 WHERE r.source = 'schedule' AND r.planned_at IS NOT NULL AND r.id >= uuid7_floor(now() - interval '12 hours')
   AND NOT EXISTS (
        SELECT 1 FROM sys_cron_executions e
         WHERE e.job_name = 'autopilot_schedule_dispatch' AND e.scope_kind = 'trigger'
           AND e.scope_id = r.trigger_id::text AND e.plan_time = r.planned_at)
 LIMIT 20;

-- name: execution_is_coherent
-- 11: an execution ends after it started, beats before it is stale, and that of a schedule keeps its trigger and revision.
SELECT e.id::text AS subject, format('%s of %s is not coherent', e.state, e.job_name) AS detail
  FROM sys_cron_executions e
 WHERE (e.state = 'RUNNING' OR e.id >= uuid7_floor(now() - interval '12 hours'))
   AND (e.finished_at < e.started_at
        OR (e.state = 'RUNNING' AND e.stale_at <= e.heartbeat_at)
        OR (e.state = 'SUCCESS' AND e.error_message IS NOT NULL)
        OR (e.job_name = 'autopilot_schedule_dispatch' AND (e.scope_kind <> 'trigger' OR e.schedule_rev IS NULL)))
 LIMIT 20;

-- name: versions_dense
-- 12: a rule's versions are numbered from 1 to its own, which is the newest of them (S5.4).
SELECT a.id::text AS subject,
       format('is at version %s but has %s versions up to %s', a.version, count(v.id), max(v.version)) AS detail
  FROM autopilot a
  LEFT JOIN autopilot_rule_version v ON v.autopilot_id = a.id
 GROUP BY a.id
HAVING count(v.id) <> a.version OR max(v.version) IS DISTINCT FROM a.version
       OR count(*) FILTER (WHERE v.id = a.version_id AND v.version = a.version) <> 1
 LIMIT 20;

-- name: trigger_version_is_its_own
-- 12: a trigger was published by a version of its own rule.
SELECT t.id::text AS subject, format('was published by version %s, which is not of its rule', t.published_version_id) AS detail
  FROM autopilot_trigger t
  LEFT JOIN autopilot_rule_version v ON v.id = t.published_version_id
 WHERE v.autopilot_id IS DISTINCT FROM t.autopilot_id
 LIMIT 20;

-- name: run_version_is_its_own
-- 12: a run's version is of its own rule, by id and number, and not from its future (S5.3).
SELECT r.id::text AS subject,
       CASE WHEN v.published_at > r.created_at THEN format('is older than its version %s', r.rule_version)
            ELSE format('has version %s, which is not of its rule', r.rule_version) END AS detail
  FROM autopilot_run r
  LEFT JOIN autopilot_rule_version v ON v.id = r.rule_version_id
 WHERE (r.completed_at IS NULL OR r.id >= uuid7_floor(now() - interval '12 hours'))
   AND ((v.autopilot_id, v.version) IS DISTINCT FROM (r.autopilot_id, r.rule_version) OR v.published_at > r.created_at)
 LIMIT 20;

-- name: run_is_accounted_for
-- 13: nobody is accountable only where attribution was blocked, or where an earlier stop came and the rule's owner had left (S5.2).
SELECT r.id::text AS subject, format('is %s %s with nobody accountable', r.status, r.reason_code) AS detail
  FROM autopilot_run r
 WHERE r.accountable_id IS NULL AND r.reason_code <> 'attribution_blocked' AND r.id >= uuid7_floor(now() - interval '12 hours')
   AND EXISTS (
        SELECT 1 FROM member m
         WHERE m.workspace_id = r.workspace_id AND m.created_at <= r.created_at
           AND m.user_id = (SELECT v.published_by FROM autopilot_rule_version v
                             WHERE v.autopilot_id = r.autopilot_id AND v.version <= r.rule_version AND v.publisher_type = 'user'
                             ORDER BY v.version DESC LIMIT 1))
 LIMIT 20;

-- name: overdue_queue
-- 14: a free entry waits no longer than half a minute.
SELECT coalesce(q.run_id, q.delivery_id)::text AS subject,
       format('waits in the queue since %s, lease %s', q.enqueued_at, coalesce(q.lease_until::text, 'free')) AS detail
  FROM dispatch_queue q
 WHERE q.enqueued_at < now() - interval '30 seconds' AND (q.lease_until IS NULL OR q.lease_until < now() - interval '30 seconds')
 ORDER BY q.seq
 LIMIT 20;

-- name: overdue_deferred
-- 14: a deferred entry moves on when its time has come.
SELECT coalesce(d.run_id, d.delivery_id)::text AS subject, format('is %s until %s', d.kind, d.available_at) AS detail
  FROM dispatch_deferred d
 WHERE d.available_at < now() - interval '30 seconds'
 ORDER BY d.available_at
 LIMIT 20;

-- name: overdue_trigger
-- 14: a due trigger fires, unless a retry of a failed plan is still to come.
SELECT t.id::text AS subject, format('was due at %s', t.next_run_at) AS detail
  FROM autopilot_trigger t
 WHERE t.next_run_at < now() - interval '60 seconds'
   AND NOT EXISTS (
        SELECT 1 FROM sys_cron_executions e
         WHERE e.job_name = 'autopilot_schedule_dispatch' AND e.scope_kind = 'trigger' AND e.scope_id = t.id::text
           AND e.next_retry_at > now())
 ORDER BY t.next_run_at
 LIMIT 20;

-- name: overdue_execution
-- 14: a stale execution is swept and a due retry taken.
SELECT e.id::text AS subject, format('%s of %s, stale at %s, retry at %s', e.state, e.job_name, e.stale_at, e.next_retry_at) AS detail
  FROM sys_cron_executions e
 WHERE (e.state = 'RUNNING' AND e.stale_at < now() - interval '60 seconds') OR e.next_retry_at < now() - interval '60 seconds'
 LIMIT 20;

-- name: overdue_task
-- 14: a lost lease is recovered within a minute and an unclaimed task expires (S11.3).
SELECT t.id::text AS subject, format('is %s, lease %s, expiry %s', t.status, t.lease_until, t.expires_at) AS detail
  FROM agent_task t
 WHERE (t.status IN ('claimed', 'running') AND t.lease_until < now() - interval '90 seconds')
    OR (t.status = 'queued' AND t.expires_at < now() - interval '90 seconds')
 LIMIT 20;

-- name: overdue_event
-- 14: an event is given its number, and relayed.
SELECT x.event_id::text AS subject, format('of %s is not %s', x.occurred_at, x.missing) AS detail
  FROM (SELECT o.event_id, o.occurred_at, 'numbered' AS missing FROM run_event_outbox o
         UNION ALL
        SELECT e.event_id, e.occurred_at, 'relayed' FROM event_head h
          JOIN run_event e ON e.workspace_id = h.workspace_id AND e.seq = h.relayed_seq + 1
         WHERE h.relayed_seq < h.last_seq) x
 WHERE x.occurred_at < now() - interval '30 seconds'
 LIMIT 20;
