-- name: lock_claimed
-- Level 5 of the lock order: which of these entries are still held by this lease. A lease that ran out and that nobody took still counts.
SELECT seq FROM dispatch_queue WHERE seq = ANY($1::bigint[]) AND lease_token = $2 ORDER BY seq FOR UPDATE;

-- name: delete_entries
-- Entries whose runs have left pending.
DELETE FROM dispatch_queue WHERE seq = ANY($1::bigint[]);

-- name: give_back
-- Free entries that were claimed and not worked on; the claim is taken back too.
UPDATE dispatch_queue
   SET lease_token = NULL, lease_until = NULL, claims = claims - 1
 WHERE seq = ANY($1::bigint[]) AND lease_token = $2;

-- name: defer_retries
-- Entries that failed wait for their next attempt; the run shows attempts and error.
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::int[], $3::float8[], $4::text[]) AS g (seq, attempts, delay_s, error)
), gone AS (
    DELETE FROM dispatch_queue q USING given g WHERE q.seq = g.seq
 RETURNING q.run_id, q.delivery_id, q.autopilot_id, q.trigger_id, q.size, q.claims, g.attempts, g.error, g.delay_s, q.enqueued_at
), told AS (
    UPDATE autopilot_run r SET dispatch_attempts = o.attempts, last_dispatch_error = o.error FROM gone o WHERE r.id = o.run_id
)
INSERT INTO dispatch_deferred (kind, run_id, delivery_id, autopilot_id, trigger_id, size, claims, attempts, last_error,
       available_at, enqueued_at)
SELECT 'retry', o.run_id, o.delivery_id, o.autopilot_id, o.trigger_id, o.size, o.claims, o.attempts, o.error,
       clock_timestamp() + o.delay_s * interval '1 second', o.enqueued_at
  FROM gone o;

-- name: move_due
-- Deferred entries whose time has come go back into the queue under a new number; a parked one never does. Whoever waited for a time within
-- a trigger's pace has it now, and who is tried again had it before. The statement's own time bounds the scan of the index, as a clock that
-- goes on while it runs cannot.
WITH due AS MATERIALIZED (
    SELECT d.id FROM dispatch_deferred d
     WHERE d.available_at <= statement_timestamp() AND d.kind <> 'parked'
     ORDER BY d.available_at
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM dispatch_deferred d USING due WHERE d.id = due.id
 RETURNING d.run_id, d.delivery_id, d.autopilot_id, d.trigger_id, d.size, d.claims, d.attempts, d.last_error, d.available_at
)
INSERT INTO dispatch_queue (run_id, delivery_id, autopilot_id, trigger_id, size, claims, attempts, last_error, paced, enqueued_at)
SELECT g.run_id, g.delivery_id, g.autopilot_id, g.trigger_id, g.size, g.claims, g.attempts, g.last_error, true, g.available_at
  FROM gone g
 ORDER BY g.available_at;

-- name: lock_guarded_autopilots
-- Level 2 of the lock order, only for rules whose policy looks at what is in flight, or behind which a run waits still.
SELECT a.id FROM autopilot a
 WHERE a.id = ANY($1::uuid[])
   AND (a.overlap_policy <> 'allow'
        OR EXISTS (SELECT 1 FROM dispatch_deferred d WHERE d.autopilot_id = a.id AND d.kind = 'parked'))
 ORDER BY a.id
   FOR NO KEY UPDATE OF a;

-- name: release_parked
-- The waiters of these autopilots behind which nothing is live any more join the queue (S3.6); a waiter is itself pending and does not count.
WITH freed AS (
    DELETE FROM dispatch_deferred d
     WHERE d.kind = 'parked' AND d.autopilot_id = ANY($1::uuid[])
       AND NOT EXISTS (
            SELECT 1 FROM autopilot_run r
             WHERE r.autopilot_id = d.autopilot_id AND r.id <> d.run_id AND r.completed_at IS NULL
               AND (r.status IN ('pending', 'running')
                    OR (r.status = 'issue_created'
                        AND EXISTS (SELECT 1 FROM agent_task t
                                     WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running')))))
 RETURNING d.run_id, d.autopilot_id, d.trigger_id, d.size
)
INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id, size)
SELECT f.run_id, f.autopilot_id, f.trigger_id, f.size FROM freed f ORDER BY f.autopilot_id
RETURNING run_id;

-- name: list_idle_parked
-- Autopilots whose waiter is past its deadline, or waits for nothing: what a lost release leaves behind.
SELECT d.autopilot_id
  FROM dispatch_deferred d
 WHERE d.kind = 'parked'
   AND (d.available_at <= clock_timestamp()
        OR NOT EXISTS (
            SELECT 1 FROM autopilot_run r
             WHERE r.autopilot_id = d.autopilot_id AND r.id <> d.run_id AND r.completed_at IS NULL
               AND (r.status IN ('pending', 'running')
                    OR (r.status = 'issue_created'
                        AND EXISTS (SELECT 1 FROM agent_task t
                                     WHERE t.issue_id = r.issue_id AND t.status IN ('queued', 'claimed', 'running'))))))
 ORDER BY d.autopilot_id
 LIMIT $1;

-- name: take_expired_parked
-- The waiters of locked autopilots that are past their deadline leave the table; their runs are ended by the caller.
DELETE FROM dispatch_deferred
 WHERE kind = 'parked' AND autopilot_id = ANY($1::uuid[]) AND available_at <= clock_timestamp()
RETURNING run_id, trigger_id;
