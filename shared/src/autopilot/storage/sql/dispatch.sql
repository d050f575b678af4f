-- name: lock_projects
-- Level 1 of the lock order: the projects that still exist, kept until the issues in them are committed.
SELECT id FROM project WHERE id = ANY($1::uuid[]) ORDER BY id FOR KEY SHARE;

-- name: dispatch
-- Everything that a batch of claimed runs becomes, in one statement. $2 to $11 have an element for each run, $12 to $26 for each ruling,
-- which $4 points at: what is the same for all runs of one rule, source and trigger. A ruling with a reason skips its runs.
-- Entries that the lease $1 no longer holds fall out in the first step, and with them all that would follow. The others go down the lock
-- order step by step: entries, runs, deliveries, the triggers' last times, and the numbers of the issues as the last lock, for which the
-- conditions with count(*) wait; then come inserts alone.
WITH given AS MATERIALIZED (
    SELECT g.seq, g.run_id, g.task_id, g.issue_id, g.title, g.told_title, g.text, g.attempts, g.place, g.first_item,
           ($12::uuid[])[g.ruling] AS workspace_id, ($13::uuid[])[g.ruling] AS autopilot_id, ($14::uuid[])[g.ruling] AS trigger_id,
           ($15::uuid[])[g.ruling] AS agent_id, ($16::uuid[])[g.ruling] AS squad_id, ($17::uuid[])[g.ruling] AS accountable_id,
           ($18::text[])[g.ruling] AS attribution_source, ($19::text[])[g.ruling] AS reason_code, ($20::text[])[g.ruling] AS reason,
           ($21::text[])[g.ruling] AS assignee_type, ($22::uuid[])[g.ruling] AS assignee_id, ($23::uuid[])[g.ruling] AS project_id,
           ($24::text[])[g.ruling] AS issue_prefix, ($25::int[])[g.ruling] AS first_follower, ($26::int[])[g.ruling] AS followers
      FROM unnest($2::bigint[], $3::uuid[], $4::int[], $5::uuid[], $6::uuid[], $7::text[], $8::text[], $9::text[], $10::int[], $11::int[])
           WITH ORDINALITY AS g (seq, run_id, ruling, task_id, issue_id, title, told_title, text, attempts, first_item, place)
), gone AS (
    DELETE FROM dispatch_queue q USING given g WHERE q.seq = g.seq AND q.lease_token = $1
 RETURNING g.*
), moved AS (
    UPDATE autopilot_run r
       SET status = CASE WHEN o.reason_code IS NOT NULL THEN 'skipped' WHEN o.issue_id IS NULL THEN 'running' ELSE 'issue_created' END,
           issue_id = o.issue_id, task_id = o.task_id, squad_id = coalesce(o.squad_id, r.squad_id), agent_id = coalesce(o.agent_id, r.agent_id),
           accountable_id = coalesce(o.accountable_id, r.accountable_id),
           attribution_source = CASE WHEN o.accountable_id IS NULL THEN r.attribution_source ELSE o.attribution_source END,
           reason_code = o.reason_code, failure_reason = o.reason, dispatch_attempts = o.attempts,
           started_at = CASE WHEN o.reason_code IS NULL THEN greatest(clock_timestamp(), r.created_at) END,
           completed_at = CASE WHEN o.reason_code IS NOT NULL THEN greatest(clock_timestamp(), r.created_at) END
      FROM gone o
     WHERE r.id = o.run_id AND r.status = 'pending'
 RETURNING o.*, r.webhook_delivery_id
), held AS MATERIALIZED (
    SELECT d.id, m.reason_code
      FROM moved m
      JOIN webhook_delivery d ON d.id = m.webhook_delivery_id
     ORDER BY d.id
       FOR NO KEY UPDATE OF d
), settled AS (
    UPDATE webhook_delivery d SET status = 'dispatched', reason_code = h.reason_code, error = NULL
      FROM held h
     WHERE d.id = h.id AND d.status = 'queued'
), freed AS (
    DELETE FROM webhook_dedupe s USING held h WHERE s.delivery_id = h.id AND h.reason_code IS NOT NULL
 RETURNING 1
), fired AS (
    INSERT INTO trigger_activity AS a (trigger_id, last_fired_at)
    SELECT m.trigger_id, clock_timestamp()
      FROM moved m
     WHERE m.trigger_id IS NOT NULL AND (SELECT count(*) FROM held) + (SELECT count(*) FROM freed) >= 0
     GROUP BY m.trigger_id
     ORDER BY m.trigger_id
        ON CONFLICT (trigger_id) DO UPDATE SET last_fired_at = greatest(a.last_fired_at, excluded.last_fired_at)
 RETURNING 1
), counted AS (
    INSERT INTO workspace_counter AS c (workspace_id, last_issue_number)
    SELECT m.workspace_id, count(*)
      FROM moved m
     WHERE m.issue_id IS NOT NULL AND (SELECT count(*) FROM fired) >= 0
     GROUP BY m.workspace_id
     ORDER BY m.workspace_id
        ON CONFLICT (workspace_id) DO UPDATE SET last_issue_number = c.last_issue_number + excluded.last_issue_number
 RETURNING workspace_id, last_issue_number
), made AS MATERIALIZED (
    SELECT m.*, c.last_issue_number - count(*) OVER (PARTITION BY m.workspace_id) + row_number() OVER (PARTITION BY m.workspace_id ORDER BY m.place) AS number
      FROM moved m
      JOIN counted c ON c.workspace_id = m.workspace_id
     WHERE m.issue_id IS NOT NULL
), issues AS (
    INSERT INTO issue (id, workspace_id, number, title, body, status, assignee_type, assignee_id, creator_type, creator_id, project_id,
           origin_autopilot_id, origin_run_id)
    SELECT n.issue_id, n.workspace_id, n.number, n.title, n.text, 'todo', n.assignee_type, n.assignee_id, 'agent', n.agent_id, n.project_id,
           n.autopilot_id, n.run_id
      FROM made n
), issue_tasks AS (
    INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, run_id, autopilot_id, accountable_id, prompt, status, max_attempts)
    SELECT n.task_id, n.workspace_id, n.agent_id, n.issue_id, n.run_id, n.autopilot_id, n.accountable_id,
           $27 || n.issue_prefix || '-' || n.number || ': ' || n.told_title || $28 || n.text, 'queued', $29
      FROM made n
), bare_tasks AS (
    INSERT INTO agent_task (id, workspace_id, agent_id, run_id, autopilot_id, accountable_id, prompt, status, max_attempts, expires_at)
    SELECT m.task_id, m.workspace_id, m.agent_id, m.run_id, m.autopilot_id, m.accountable_id, m.text, 'queued', 1,
           clock_timestamp() + $30 * interval '1 second'
      FROM moved m
     WHERE m.issue_id IS NULL AND m.task_id IS NOT NULL
), told AS MATERIALIZED (
    SELECT n.workspace_id, n.autopilot_id, n.run_id, n.issue_id, f.item_id, f.user_id, n.issue_prefix || '-' || n.number || ' ' || n.title AS title
      FROM made n
     CROSS JOIN LATERAL unnest(($31::uuid[])[n.first_item : n.first_item + n.followers - 1],
                               ($32::uuid[])[n.first_follower : n.first_follower + n.followers - 1]) AS f (item_id, user_id)
), followed AS (
    INSERT INTO issue_subscriber (issue_id, user_id, workspace_id, reason)
    SELECT t.issue_id, t.user_id, t.workspace_id, 'autopilot' FROM told t
), inbox AS (
    INSERT INTO inbox_item (id, workspace_id, user_id, kind, title, autopilot_id, run_id, issue_id)
    SELECT t.item_id, t.workspace_id, t.user_id, 'issue_created', t.title, t.autopilot_id, t.run_id, t.issue_id FROM told t
)
SELECT CASE WHEN m.reason_code IS NOT NULL THEN 'skipped' WHEN m.issue_id IS NULL THEN 'running' ELSE 'issue_created' END AS outcome,
       m.reason_code, count(*) AS runs
  FROM moved m
 GROUP BY 1, 2;
