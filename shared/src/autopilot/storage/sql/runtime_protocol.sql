-- name: register_runtime
-- The runtime that registers under this name: made, or found and told anew. The name is a machine's for as long as it is not deleted,
-- whatever people call it.
INSERT INTO runtime (id, workspace_id, name, registered_by, token_id, concurrency, capabilities)
VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (workspace_id, coalesce(registered_as, name)) WHERE deleted_at IS NULL DO UPDATE
   SET token_id = excluded.token_id, concurrency = excluded.concurrency, capabilities = excluded.capabilities
RETURNING id, name, least(concurrency, concurrency_limit) AS concurrency;

-- name: beat
-- A heartbeat with what the machine says about itself, kept beside the runtime; no row if the runtime is not here.
INSERT INTO runtime_heartbeat (runtime_id, seen_at, usable, detail, repair_hint)
SELECT r.id, clock_timestamp(), $3, $4, $5 FROM runtime r WHERE r.workspace_id = $1 AND r.id = $2 AND r.deleted_at IS NULL
    ON CONFLICT (runtime_id) DO UPDATE
   SET seen_at = greatest(runtime_heartbeat.seen_at, excluded.seen_at), usable = excluded.usable, detail = excluded.detail,
       repair_hint = excluded.repair_hint
RETURNING runtime_id;

-- name: touch
-- The heartbeat that every other call implies.
INSERT INTO runtime_heartbeat (runtime_id, seen_at)
SELECT r.id, clock_timestamp() FROM runtime r WHERE r.workspace_id = $1 AND r.id = $2 AND r.deleted_at IS NULL
    ON CONFLICT (runtime_id) DO UPDATE SET seen_at = greatest(runtime_heartbeat.seen_at, excluded.seen_at)
RETURNING runtime_id, usable;

-- name: begin_claim
-- The same, with a mark that says whose turn to claim it is now. Apart from the claim ($4) it need not survive a crash of the server, so
-- nobody waits for the disk; in its transaction it holds the heartbeat, and so the turn, until the claim is committed.
INSERT INTO runtime_heartbeat (runtime_id, seen_at, claiming)
SELECT r.id, clock_timestamp(), $3
  FROM runtime r
 WHERE r.workspace_id = $1 AND r.id = $2 AND r.deleted_at IS NULL
   AND (NOT $4::boolean OR set_config('synchronous_commit', 'off', true) IS NOT NULL)
    ON CONFLICT (runtime_id) DO UPDATE SET seen_at = greatest(runtime_heartbeat.seen_at, excluded.seen_at), claiming = excluded.claiming
RETURNING runtime_id;

-- name: forget
-- A runtime that leaves is offline at once.
DELETE FROM runtime_heartbeat h USING runtime r WHERE r.workspace_id = $1 AND r.id = $2 AND h.runtime_id = r.id
RETURNING h.runtime_id;

-- name: claim
-- A runtime's tasks under claim $3: those that it holds already, else up to $4 of the oldest queued ones of the agents bound to it, as far as
-- it has hands for them, each under a lease of its own for $5 seconds; and with them, or alone, the tasks met on the way that fit nothing
-- here: one of a bare run fits if it is still its run's, here. A lease that ran out holds no slot.
-- $6 candidates more than wanted are read, without locks: some may belong to an issue that somebody else works on at this moment, which is
-- passed over (HAZARDS 4). Locks go down the order: the heartbeat, issues (a closed one has no live task), then tasks. Whoever claims an
-- issue's task works on it now (S11.6).
-- Claims of one runtime go one after the other, or they would take more than there are hands: this one gets something only if the mark $7 of
-- its own beginning is the last. Whoever begins while it holds the heartbeat waits for it, and counts what it took. A runtime that is not
-- usable keeps what it holds and gets nothing new.
WITH turn AS MATERIALIZED (
    SELECT b.runtime_id, b.usable FROM runtime_heartbeat b WHERE b.runtime_id = $2 AND b.claiming = $7 FOR NO KEY UPDATE
), mine AS MATERIALIZED (
    SELECT t.id, t.claim_id = $3 AS again, t.lease_until > clock_timestamp() AS alive
      FROM agent_task t
     WHERE t.runtime_id = (SELECT u.runtime_id FROM turn u) AND t.status IN ('claimed', 'running')
), wanted AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT 1 FROM turn u WHERE u.usable) AND NOT EXISTS (SELECT 1 FROM mine m WHERE m.again)
                THEN greatest(0, least($4, (SELECT least(r.concurrency, r.concurrency_limit) FROM runtime r WHERE r.id = $2)
                                           - (SELECT count(*) FROM mine m WHERE m.alive)))
                ELSE 0 END AS tasks
), candidates AS MATERIALIZED (
    SELECT c.id, c.issue_id, c.fits
      FROM agent a
     CROSS JOIN LATERAL (
        SELECT t.id, t.issue_id,
               t.workspace_id = a.workspace_id
               AND (t.issue_id IS NOT NULL
                    OR (SELECT r.workspace_id = t.workspace_id AND r.task_id = t.id AND r.execution_mode = 'run_only'
                          FROM autopilot_run r WHERE r.id = t.run_id) IS TRUE) AS fits
          FROM agent_task t
         WHERE t.agent_id = a.id AND t.status = 'queued' AND t.available_at <= clock_timestamp()
           AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
         ORDER BY t.id
         LIMIT (SELECT CASE WHEN w.tasks > 0 THEN w.tasks + $6 ELSE 0 END FROM wanted w)) c
     WHERE a.workspace_id = $1 AND a.runtime_id = $2
     ORDER BY c.id
     LIMIT (SELECT w.tasks + $6 FROM wanted w)
), open AS MATERIALIZED (
    SELECT i.id
      FROM issue i
     WHERE i.id = ANY (ARRAY(SELECT c.issue_id FROM candidates c WHERE c.issue_id IS NOT NULL AND c.fits))
       AND i.status NOT IN ('done', 'cancelled')
     ORDER BY i.id
       FOR NO KEY UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT t.id
      FROM agent_task t
      JOIN agent a ON a.id = t.agent_id AND a.runtime_id = $2
     WHERE t.id = ANY (ARRAY(SELECT c.id FROM candidates c WHERE c.fits AND (c.issue_id IS NULL OR c.issue_id IN (SELECT o.id FROM open o))))
       AND t.status = 'queued'
     ORDER BY t.id
     LIMIT (SELECT w.tasks FROM wanted w)
       FOR NO KEY UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE agent_task t
       SET status = 'claimed', runtime_id = $2, claim_id = $3, lease_token = gen_random_uuid(), claims = t.claims + 1,
           claimed_at = clock_timestamp(), lease_until = clock_timestamp() + $5 * interval '1 second', progress = NULL
      FROM free
     WHERE t.id = free.id
 RETURNING t.id, t.lease_token, t.lease_until, t.prompt, t.attempt, t.max_attempts, t.timeout_s, t.workspace_id, t.agent_id, t.issue_id,
           t.run_id, t.autopilot_id
), begun AS (
    UPDATE issue i SET status = 'in_progress', rev = i.rev + 1, updated_at = clock_timestamp()
      FROM taken k
     WHERE i.id = k.issue_id AND i.status IN ('backlog', 'todo')
), told AS (
    SELECT k.id, k.lease_token, k.lease_until, k.prompt, k.attempt, k.max_attempts, k.timeout_s, k.workspace_id, k.agent_id, k.issue_id,
           k.run_id, k.autopilot_id
      FROM taken k
     UNION ALL
    SELECT t.id, t.lease_token, t.lease_until, t.prompt, t.attempt, t.max_attempts, t.timeout_s, t.workspace_id, t.agent_id, t.issue_id,
           t.run_id, t.autopilot_id
      FROM agent_task t
     WHERE t.id = ANY (ARRAY(SELECT m.id FROM mine m WHERE m.again))
)
SELECT x.in_turn, x.misfits, t.id, t.lease_token, t.lease_until, t.prompt, t.attempt, t.max_attempts, t.timeout_s, t.workspace_id, t.agent_id,
       g.name AS agent_name, t.issue_id, w.issue_prefix || '-' || i.number AS issue_key, t.run_id, t.autopilot_id, r.source, r.planned_at
  FROM (SELECT EXISTS (SELECT 1 FROM turn) AS in_turn, ARRAY(SELECT c.id FROM candidates c WHERE NOT c.fits ORDER BY c.id) AS misfits) x
  LEFT JOIN told t ON true
  LEFT JOIN agent g ON g.id = t.agent_id
  LEFT JOIN workspace w ON w.id = t.workspace_id
  LEFT JOIN issue i ON i.id = t.issue_id
  LEFT JOIN autopilot_run r ON r.id = t.run_id
 ORDER BY t.id;

-- name: start_task
-- Claimed to running, once; repeating it only renews the lease. No row: the lease is not this one, or it has ended.
UPDATE agent_task
   SET status = 'running', started_at = coalesce(started_at, greatest(clock_timestamp(), claimed_at)),
       lease_until = least(clock_timestamp() + $3 * interval '1 second',
                           coalesce(started_at, clock_timestamp()) + (timeout_s + $4) * interval '1 second')
 WHERE id = $1 AND lease_token = $2 AND status IN ('claimed', 'running')
RETURNING id;

-- name: renew_tasks
-- One statement for all tasks of a runtime, locked in id order; no lease reaches beyond the task's time, counted from its claim where it
-- was never started, or one could be held for ever. What is answered is each one's state now.
WITH asked AS MATERIALIZED (
    SELECT t.id, g.lease_token, g.progress
      FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS g (id, lease_token, progress)
      JOIN agent_task t ON t.id = g.id AND t.runtime_id = $1 AND t.lease_token = g.lease_token
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
)
UPDATE agent_task t
   SET progress = coalesce(a.progress, t.progress),
       lease_until = CASE WHEN t.status IN ('claimed', 'running')
                          THEN least(clock_timestamp() + $5 * interval '1 second',
                                     coalesce(t.started_at, t.claimed_at) + (t.timeout_s + $6) * interval '1 second') END
  FROM asked a
 WHERE t.id = a.id AND t.lease_token = a.lease_token
RETURNING t.id, t.status, t.lease_until, coalesce(t.lease_until > clock_timestamp(), false) AS alive;

-- name: find_waiting
-- Those of the runtimes that have a task to claim and a hand free for it: what one poll for all waiting requests asks. Whatever keeps a
-- claim from getting anything is asked here too, or each of its waiters would try in vain at every poll.
SELECT r.id
  FROM unnest($1::uuid[]) AS k (id)
  JOIN runtime r ON r.id = k.id
 WHERE EXISTS (SELECT 1 FROM agent a
                CROSS JOIN LATERAL (SELECT 1 FROM agent_task t
                                     WHERE t.agent_id = a.id AND t.status = 'queued' AND t.available_at <= clock_timestamp()
                                       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                                     LIMIT 1) q
                WHERE a.workspace_id = r.workspace_id AND a.runtime_id = r.id)
   AND NOT EXISTS (SELECT 1 FROM runtime_heartbeat b WHERE b.runtime_id = r.id AND NOT b.usable)
   AND least(r.concurrency, r.concurrency_limit)
       > (SELECT count(*) FROM agent_task h
           WHERE h.runtime_id = r.id AND h.status IN ('claimed', 'running') AND h.lease_until > clock_timestamp());
