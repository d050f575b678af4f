-- name: claim
-- The oldest free entries of runs from $1 up to $2, at most $3 rows of $4 bytes, leased for $6 seconds under token $5 in one statement that
-- touches no index, with all that dispatch judges and tells of them. Left out are the triggers in $8 as far as they have no time yet; $9, where
-- given, names the only ones whose entries get theirs.
-- An entry that was claimed three times without an outcome comes alone: the claims of its neighbours are not spent on it.
-- Webhook runs get their time first, $7 a minute where their trigger says nothing; those whose time is later leave for it at once (S10.3).
-- A late schedule run is superseded if any later one of its trigger was not skipped ($10 and $11 s are the limits of the two policies that
-- have one): whoever asks, and in whatever order, all but the newest are (S10.6, HAZARDS 10).
-- Entries are taken by SKIP LOCKED alone, so the lock on a trigger's pace, taken after them, waits for nobody who waits for an entry. With no
-- lease ($6 = 0) times are given and nothing is claimed. The arrays keep the planner from expecting a tenth of the queue and joining by
-- reading all of it.
-- A claim need not survive a crash of the server, where it ends as leases do: nobody waits for the disk.
WITH picked AS MATERIALIZED (
    SELECT q.seq, q.trigger_id, q.size, q.paced, q.claims - q.attempts >= 3 AS suspect
      FROM dispatch_queue q
     WHERE q.seq >= $1 AND q.seq < $2 AND q.run_id IS NOT NULL AND (q.lease_until IS NULL OR q.lease_until < clock_timestamp())
       AND (q.paced OR (q.trigger_id = ANY($8::uuid[])) IS NOT TRUE) AND ($9::uuid[] IS NULL OR (NOT q.paced AND q.trigger_id = ANY($9::uuid[])))
     ORDER BY q.seq
     LIMIT $3
       FOR UPDATE SKIP LOCKED
), bounded AS (
    SELECT p.seq, p.trigger_id, p.paced, p.suspect, row_number() OVER w AS place, sum(p.size) OVER w AS bytes
      FROM picked p
    WINDOW w AS (ORDER BY p.suspect AND p.seq <> (SELECT min(f.seq) FROM picked f), p.seq)
), taken AS MATERIALIZED (
    SELECT u.seq, u.trigger_id, u.paced
      FROM (SELECT array_agg(b.seq ORDER BY b.seq) AS seqs, array_agg(b.trigger_id ORDER BY b.seq) AS triggers,
                   array_agg(b.paced ORDER BY b.seq) AS paced
              FROM bounded b
             WHERE b.place = 1
                OR (NOT b.suspect AND b.bytes <= $4 AND NOT (SELECT f.suspect FROM bounded f WHERE f.place = 1))) a
     CROSS JOIN LATERAL unnest(a.seqs, a.triggers, a.paced) AS u (seq, trigger_id, paced)
), asking AS MATERIALIZED (
    SELECT t.trigger_id, array_agg(t.seq ORDER BY t.seq) AS seqs FROM taken t WHERE t.trigger_id IS NOT NULL AND NOT t.paced GROUP BY t.trigger_id
), granted AS (
    INSERT INTO trigger_pace AS p (trigger_id, pace_per_min, granted_at)
    SELECT t.id, coalesce(t.pace_per_min, $7), pace_slots('{}', coalesce(t.pace_per_min, $7), cardinality(a.seqs))
      FROM asking a
      JOIN autopilot_trigger t ON t.id = a.trigger_id AND t.kind = 'webhook'
     ORDER BY t.id
        ON CONFLICT (trigger_id) DO UPDATE
       SET pace_per_min = excluded.pace_per_min,
           granted_at = pace_slots(p.granted_at, excluded.pace_per_min, cardinality(excluded.granted_at))
 RETURNING trigger_id, granted_at
), later AS MATERIALIZED (
    SELECT u.seq, a.trigger_id, u.slot
      FROM asking a
      JOIN granted g ON g.trigger_id = a.trigger_id
     CROSS JOIN LATERAL unnest(a.seqs, g.granted_at[cardinality(g.granted_at) - cardinality(a.seqs) + 1 :]) AS u (seq, slot)
     WHERE u.slot > clock_timestamp()
), gone AS (
    DELETE FROM dispatch_queue q USING later l WHERE q.seq = l.seq
 RETURNING q.seq, q.run_id, q.autopilot_id, q.trigger_id, q.size, q.claims, q.attempts, q.last_error, q.enqueued_at, l.slot
), put_back AS (
    INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, trigger_id, size, claims, attempts, last_error, available_at, enqueued_at)
    SELECT 'paced', g.run_id, g.autopilot_id, g.trigger_id, g.size, g.claims, g.attempts, g.last_error, g.slot, g.enqueued_at
      FROM gone g
     ORDER BY g.slot, g.seq
), leased AS (
    UPDATE dispatch_queue q
       SET lease_token = CASE WHEN $6 > 0 THEN $5::uuid END, paced = true,
           lease_until = CASE WHEN $6 > 0 THEN clock_timestamp() + $6 * interval '1 second' END,
           claims = q.claims + CASE WHEN $6 > 0 THEN 1 ELSE 0 END
     WHERE q.seq = ANY (ARRAY(SELECT t.seq FROM taken t WHERE (t.seq IN (SELECT l.seq FROM later l)) IS NOT TRUE))
 RETURNING q.seq, q.run_id, q.autopilot_id, q.trigger_id, q.size, q.claims, q.attempts
)
SELECT c.next_seq, c.deferred, c.noisy, c.more,
       l.seq, l.run_id, l.autopilot_id, l.trigger_id, l.size, l.claims, l.attempts,
       r.id IS NOT NULL AS pending, r.source, r.execution_mode, r.rule_version_id, r.planned_at, r.created_at, r.originator_id, r.event, r.payload,
       d.id AS delivery_id, d.provider, d.event AS delivery_event, d.content_type, d.received_at, b.body, b.raw_size,
       CASE WHEN r.source = 'schedule' THEN
            (SELECT t.catch_up <> 'all'
                    AND r.planned_at < clock_timestamp() - interval '1 second'
                        * CASE t.catch_up WHEN 'none' THEN $11 ELSE coalesce(t.lateness_s, $10) END
                    AND EXISTS (SELECT 1 FROM autopilot_run n
                                 WHERE n.trigger_id = r.trigger_id AND n.planned_at > r.planned_at AND n.status <> 'skipped')
               FROM autopilot_trigger t WHERE t.id = r.trigger_id) END AS superseded,
       CASE WHEN row_number() OVER (PARTITION BY r.rule_version_id ORDER BY l.seq) = 1 THEN
            (SELECT jsonb_build_object(
                        'rule', v.rule, 'workspace_id', a.workspace_id, 'creator_id', a.creator_id, 'project_id', a.project_id,
                        'rule_owner', jsonb_build_object('user_id', a.rule_owner_id, 'present', EXISTS (
                            SELECT 1 FROM member m WHERE m.workspace_id = a.workspace_id AND m.user_id = a.rule_owner_id)),
                        'attribution_policy', w.attribution_policy, 'issue_prefix', w.issue_prefix, 'executor', to_jsonb(x),
                        'subscribers', ARRAY(SELECT s.user_id FROM autopilot_subscriber s WHERE s.autopilot_id = a.id ORDER BY s.user_id),
                        'shared_with', ARRAY(SELECT s.user_id FROM agent_share s WHERE s.agent_id = x.agent_id), 'read_at', clock_timestamp())
               FROM autopilot_rule_version v
               JOIN autopilot a ON a.id = v.autopilot_id
               JOIN workspace w ON w.id = a.workspace_id
              CROSS JOIN LATERAL executor_facts(
                    a.workspace_id, v.rule ->> 'assignee_type',
                    CASE v.rule ->> 'assignee_type' WHEN 'agent' THEN (v.rule ->> 'assignee_id')::uuid END,
                    CASE v.rule ->> 'assignee_type' WHEN 'squad' THEN (v.rule ->> 'assignee_id')::uuid END,
                    a.creator_id) x
              WHERE v.id = r.rule_version_id) END AS rule_facts,
       CASE WHEN row_number() OVER (PARTITION BY r.trigger_id ORDER BY l.seq) = 1 THEN
            (SELECT jsonb_build_object(
                        'id', t.id, 'kind', t.kind, 'label', t.label, 'timezone', t.timezone,
                        'publisher', CASE WHEN t.published_by IS NOT NULL THEN jsonb_build_object('user_id', t.published_by, 'present', EXISTS (
                            SELECT 1 FROM member m WHERE m.workspace_id = t.workspace_id AND m.user_id = t.published_by)) END)
               FROM autopilot_trigger t WHERE t.id = r.trigger_id) END AS trigger_facts
  FROM (SELECT CASE WHEN (SELECT count(*) FROM picked) = $3 AND (SELECT count(*) FROM taken) = $3
                    THEN (SELECT max(p.seq) + 1 FROM picked p) END AS next_seq,
               (SELECT count(*) FROM gone) AS deferred,
               (SELECT count(*) FROM picked) = $3 OR (SELECT count(*) FROM taken) < (SELECT count(*) FROM picked) AS more,
               ARRAY(SELECT DISTINCT n.trigger_id FROM later n) AS noisy,
               set_config('synchronous_commit', 'off', true)) c
  LEFT JOIN (leased l
             LEFT JOIN autopilot_run r ON r.id = l.run_id AND r.status = 'pending'
             LEFT JOIN webhook_delivery d ON d.id = r.webhook_delivery_id
             LEFT JOIN webhook_body b ON b.delivery_id = d.id) ON $6 > 0
 ORDER BY l.seq;

-- name: look_ahead
-- Where the next $2 entries from $1 on end; nothing where there are no more.
SELECT q.seq FROM dispatch_queue q WHERE q.seq >= $1 ORDER BY q.seq OFFSET $2 LIMIT 1;
