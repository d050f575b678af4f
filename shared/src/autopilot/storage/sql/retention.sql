-- Old history, a page at a time (S7.17, HAZARDS 30). Pages are found without a lock in the order of ids, which applications make: a host
-- whose clock is ahead may have made one two hours too high, so pages reach that far and the row's own time, the database's, decides.
-- Rows are locked from runs down to deliveries, those that somebody else holds are left for the next time, and what may go is decided
-- in a later statement, when nobody can add to it any more.

-- name: find_old_runs
-- A page of runs that were admitted long enough ago.
SELECT id FROM autopilot_run
 WHERE id > $1 AND id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
 ORDER BY id
 LIMIT $3;

-- name: lock_runs
-- Those that ended long enough ago. Whoever works on a run, its issue or its tasks locks the run first.
SELECT id FROM autopilot_run
 WHERE id = ANY($1::uuid[]) AND completed_at < statement_timestamp() - $2::interval
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: lock_deliveries_of_runs
-- Their deliveries, unless the sender repeated one lately: its slot must go on saying that this was done (S9.7).
SELECT id FROM webhook_delivery
 WHERE id = ANY(ARRAY(SELECT r.webhook_delivery_id FROM autopilot_run r WHERE r.id = ANY($1::uuid[])))
   AND last_attempt_at < statement_timestamp() - $2::interval
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: decide_runs
-- Which of the locked runs nobody needs: the issue is closed or gone, no task is live, the delivery is locked and was never replayed.
SELECT r.id, r.webhook_delivery_id AS delivery_id
  FROM autopilot_run r
  LEFT JOIN issue i ON i.id = r.issue_id
 WHERE r.id = ANY($1::uuid[])
   AND (i.id IS NULL OR i.closed_at IS NOT NULL)
   AND (r.webhook_delivery_id IS NULL OR r.webhook_delivery_id = ANY($2::uuid[]))
   AND NOT EXISTS (SELECT 1 FROM agent_task t WHERE t.run_id = r.id AND t.status IN ('queued', 'claimed', 'running'))
   AND NOT EXISTS (SELECT 1 FROM agent_task t WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running'))
   AND NOT EXISTS (SELECT 1 FROM webhook_delivery p WHERE p.replayed_from = r.webhook_delivery_id);

-- name: delete_runs
-- Runs with their tasks and deliveries, and what hangs on those.
WITH tasks AS (DELETE FROM agent_task WHERE run_id = ANY($1::uuid[])),
     slots AS (DELETE FROM webhook_dedupe WHERE delivery_id = ANY($2::uuid[])),
     bodies AS (DELETE FROM webhook_body WHERE delivery_id = ANY($2::uuid[])),
     deliveries AS (DELETE FROM webhook_delivery WHERE id = ANY($2::uuid[]))
DELETE FROM autopilot_run WHERE id = ANY($1::uuid[]);

-- name: find_old_deliveries
-- A page of deliveries without a run that came long enough ago; those with one go with it.
SELECT id FROM webhook_delivery
 WHERE run_id IS NULL AND id > $1 AND id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
 ORDER BY id
 LIMIT $3;

-- name: lock_deliveries
-- Those that are decided for good.
SELECT id FROM webhook_delivery
 WHERE id = ANY($1::uuid[]) AND run_id IS NULL AND status IN ('ignored', 'rejected', 'failed')
   AND received_at < statement_timestamp() - $2::interval
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: delete_deliveries
-- Locked deliveries that were never replayed, with what hangs on them.
WITH gone AS (
    DELETE FROM webhook_delivery d
     WHERE d.id = ANY($1::uuid[]) AND NOT EXISTS (SELECT 1 FROM webhook_delivery p WHERE p.replayed_from = d.id)
 RETURNING d.id
), slots AS (
    DELETE FROM webhook_dedupe s WHERE s.delivery_id = ANY($1::uuid[]) AND s.delivery_id IN (SELECT id FROM gone)
), bodies AS (
    DELETE FROM webhook_body b WHERE b.delivery_id = ANY($1::uuid[]) AND b.delivery_id IN (SELECT id FROM gone)
)
SELECT count(*) FROM gone;

-- name: find_old_bodies
-- A page of bodies that came long enough ago.
SELECT delivery_id AS id FROM webhook_body
 WHERE delivery_id > $1 AND delivery_id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
 ORDER BY delivery_id
 LIMIT $3;

-- name: lock_deliveries_of_bodies
-- Their deliveries: whoever replays one locks it too.
SELECT id FROM webhook_delivery
 WHERE id = ANY($1::uuid[]) AND received_at < statement_timestamp() - $2::interval
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: delete_bodies
-- Bodies that neither their own run nor that of a replay still needs.
DELETE FROM webhook_body b
 WHERE b.delivery_id = ANY($1::uuid[])
   AND NOT EXISTS (SELECT 1 FROM webhook_delivery d LEFT JOIN autopilot_run r ON r.id = d.run_id
                    WHERE d.id = b.delivery_id
                      AND (d.status = 'queued' OR r.status IN ('pending', 'issue_created', 'running')))
   AND NOT EXISTS (SELECT 1 FROM webhook_delivery p LEFT JOIN autopilot_run r ON r.id = p.run_id
                    WHERE p.replayed_from = b.delivery_id
                      AND (p.status = 'queued' OR r.status IN ('pending', 'issue_created', 'running')));

-- name: find_old_outputs
-- A page of tasks whose output may be old enough, found by leaps from one to the next: each may have many pieces, so a page is small.
WITH RECURSIVE found AS (
    (SELECT o.task_id FROM task_output o
      WHERE o.task_id > $1 AND o.task_id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
      ORDER BY o.task_id LIMIT 1)
    UNION ALL
    SELECT (SELECT o.task_id FROM task_output o
             WHERE o.task_id > f.task_id AND o.task_id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
             ORDER BY o.task_id LIMIT 1)
      FROM found f WHERE f.task_id IS NOT NULL
)
SELECT task_id AS id FROM found WHERE task_id IS NOT NULL LIMIT least($3, 20);

-- name: delete_outputs
-- Old pieces of tasks that are over, or gone.
DELETE FROM task_output o
 WHERE o.task_id = ANY($1::uuid[]) AND o.created_at < statement_timestamp() - $2::interval
   AND NOT EXISTS (SELECT 1 FROM agent_task t WHERE t.id = o.task_id AND t.status IN ('queued', 'claimed', 'running'));

-- name: find_old_items
-- A page of inbox items that came long enough ago.
SELECT id FROM inbox_item
 WHERE id > $1 AND id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
 ORDER BY id
 LIMIT $3;

-- name: delete_items
-- Read or not: what they tell of is as old.
DELETE FROM inbox_item WHERE id = ANY($1::uuid[]) AND created_at < statement_timestamp() - $2::interval;

-- name: find_old_executions
-- A page of executions that were begun long enough ago.
SELECT id FROM sys_cron_executions
 WHERE id > $1 AND id < uuid7_floor(statement_timestamp() - $2::interval + interval '2 hours')
 ORDER BY id
 LIMIT $3;

-- name: delete_executions
-- Those that are final, except the newest plan of each scope: from there planning goes on (HAZARDS 24).
WITH locked AS MATERIALIZED (
    SELECT e.id, e.job_name, e.scope_kind, e.scope_id, e.plan_time
      FROM sys_cron_executions e
     WHERE e.id = ANY($1::uuid[]) AND e.next_retry_at IS NULL AND e.finished_at < statement_timestamp() - $2::interval
     ORDER BY e.id
       FOR UPDATE SKIP LOCKED
)
DELETE FROM sys_cron_executions
 WHERE id = ANY(ARRAY(
    SELECT l.id FROM locked l
     WHERE EXISTS (SELECT 1 FROM sys_cron_executions n
                    WHERE n.job_name = l.job_name AND n.scope_kind = l.scope_kind AND n.scope_id = l.scope_id
                      AND n.plan_time > l.plan_time)));

-- name: find_workspace_with_events
-- The workspace behind this one.
SELECT workspace_id FROM event_head WHERE workspace_id > $1 ORDER BY workspace_id LIMIT 1;

-- name: find_old_events
-- The first events of a workspace behind a number, up to the first that is kept: what stays is dense. Without NATS nothing is ever
-- relayed, so that is not waited for; but the newest stays until it is, or a relay would look for ever for what its head promises.
SELECT x.seq
  FROM (SELECT e.seq, bool_and(e.occurred_at < statement_timestamp() - $3::interval) OVER (ORDER BY e.seq) AS old
          FROM (SELECT v.seq, v.occurred_at FROM run_event v
                 WHERE v.workspace_id = $1 AND v.seq > $2
                   AND v.seq <= (SELECT CASE h.relayed_seq WHEN h.last_seq THEN h.last_seq ELSE h.last_seq - 1 END
                                   FROM event_head h WHERE h.workspace_id = $1)
                 ORDER BY v.seq
                 LIMIT $4) e) x
 WHERE x.old
 ORDER BY x.seq;

-- name: delete_events
-- Without SKIP LOCKED: another process at the same events is waited for, since what is left must have no hole.
DELETE FROM run_event WHERE workspace_id = $1 AND seq = ANY($2::bigint[]);

-- name: delete_statistics
-- The oldest hours from one on, by their place: locked and deleted in one statement.
DELETE FROM run_stats_hourly s
 WHERE s.ctid = ANY(ARRAY(
    SELECT x.ctid FROM run_stats_hourly x
     WHERE x.hour >= $1 AND x.hour < statement_timestamp() - $2::interval
     ORDER BY x.hour
     LIMIT $3
       FOR UPDATE SKIP LOCKED))
RETURNING s.hour;
