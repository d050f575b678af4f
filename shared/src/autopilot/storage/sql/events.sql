-- name: open_heads
-- A head for each workspace among the first outbox rows above an id ($2) that has none yet; whether there is any such row at all.
WITH waiting AS MATERIALIZED (
    SELECT DISTINCT o.workspace_id FROM (SELECT workspace_id FROM run_event_outbox WHERE id > $2 ORDER BY id LIMIT $1) o
), opened AS (
    INSERT INTO event_head (workspace_id)
    SELECT w.workspace_id FROM waiting w
     WHERE NOT EXISTS (SELECT 1 FROM event_head h WHERE h.workspace_id = w.workspace_id)
     ORDER BY w.workspace_id
        ON CONFLICT DO NOTHING
)
SELECT EXISTS (SELECT 1 FROM waiting);

-- name: lock_heads
-- The sequencer's own locks: the workspaces of the first outbox rows above an id, without those that another sequencer works on.
SELECT h.workspace_id FROM event_head h
 WHERE h.workspace_id IN (SELECT o.workspace_id FROM (SELECT workspace_id FROM run_event_outbox WHERE id > $2 ORDER BY id LIMIT $1) o)
 ORDER BY h.workspace_id
   FOR UPDATE SKIP LOCKED;

-- name: sequence
-- Move outbox rows of locked workspaces to run_event, numbered densely. It must be a statement of its own after the lock: then it sees
-- all that committed before, and whoever commits later gets a later number. Rows are deleted by an array of their ids, which is looked
-- up in the index however long the backlog is; a join would read all of it for each batch. The first numbers given in a restored
-- database begin an epoch, by the clock, so that no two restorations share one: cursors of what was lost fit nothing.
-- The answer counts what was told, for metrics.
WITH here AS MATERIALIZED (
    SELECT database_history() AS history
), taken AS (
    DELETE FROM run_event_outbox o
     WHERE o.id = ANY(ARRAY(SELECT n.id FROM run_event_outbox n WHERE n.workspace_id = ANY($1::uuid[]) AND n.id > $3 ORDER BY n.id LIMIT $2))
 RETURNING o.id, o.event_id, o.workspace_id, o.autopilot_id, o.run_id, o.kind, o.payload, o.occurred_at
), numbered AS (
    SELECT t.id, t.event_id, t.workspace_id, t.autopilot_id, t.run_id, t.kind, t.payload, t.occurred_at,
           h.last_seq + row_number() OVER (PARTITION BY t.workspace_id ORDER BY t.id) AS seq
      FROM taken t
      JOIN event_head h ON h.workspace_id = t.workspace_id
), counted AS (
    UPDATE event_head h
       SET last_seq = n.top, history = here.history,
           epoch = CASE WHEN h.history = here.history THEN h.epoch ELSE greatest(h.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) END
      FROM here, (SELECT workspace_id, max(seq) AS top FROM numbered GROUP BY workspace_id) n
     WHERE h.workspace_id = n.workspace_id
), told AS (
    INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
    SELECT n.workspace_id, n.seq, n.event_id, n.autopilot_id, n.run_id, n.kind, n.payload, n.occurred_at
      FROM numbered n
     ORDER BY n.workspace_id, n.seq
)
SELECT n.payload->>'source' AS source, n.payload->>'status' AS status, n.payload->>'reason_code' AS reason, count(*) AS events
  FROM numbered n
 GROUP BY 1, 2, 3;

-- name: read_given_id
-- The last id that the outbox gave out; 0 before the first.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS given FROM run_event_outbox_id_seq;

-- name: read_transactions
-- A transaction number younger than every one given so far, the oldest that is still at work, and which database this is.
SELECT pg_current_xact_id()::text::bigint AS youngest, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest, database_history() AS history;

-- name: find_first_id
-- The first outbox row above one id and not above another.
SELECT id FROM run_event_outbox WHERE id > $1 AND id <= $2 ORDER BY id LIMIT 1;

-- name: read_after
-- A workspace's events behind a sequence number.
SELECT e.workspace_id, h.epoch, e.seq, e.event_id, e.autopilot_id, e.run_id, e.kind, e.payload, e.occurred_at
  FROM event_head h
  JOIN run_event e ON e.workspace_id = h.workspace_id
 WHERE h.workspace_id = $1 AND e.seq > $2
 ORDER BY e.seq
 LIMIT $3;

-- name: read_head
-- How far a workspace's events go, from which number on they are kept, and the epoch that cursors carry.
SELECT h.epoch, h.last_seq, coalesce((SELECT min(e.seq) FROM run_event e WHERE e.workspace_id = h.workspace_id), h.last_seq + 1) AS first_seq
  FROM event_head h
 WHERE h.workspace_id = $1;

-- name: read_last_seqs
-- How far several workspaces go, for those who wait for more.
SELECT workspace_id, last_seq FROM event_head WHERE workspace_id = ANY($1::uuid[]);

-- name: find_welcome
-- Of listeners, each a token ($1) in a workspace ($2): those whose token is still live and whose person is still a member.
SELECT l.token_id, l.workspace_id
  FROM unnest($1::uuid[], $2::uuid[]) AS l (token_id, workspace_id)
  JOIN api_token t ON t.id = l.token_id
 WHERE t.revoked_at IS NULL AND t.expires_at > clock_timestamp()
   AND (t.kind <> 'personal'
        OR EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = l.workspace_id AND m.user_id = t.user_id));

-- name: lease_relays
-- The next workspaces behind one that have events which are not confirmed yet and whom nobody relays, taken by this lease.
UPDATE event_head h
   SET relay_token = $1, relay_until = clock_timestamp() + $2 * interval '1 second'
  FROM (SELECT workspace_id FROM event_head
         WHERE relayed_seq < last_seq AND (relay_until IS NULL OR relay_until < clock_timestamp()) AND workspace_id > $4
         ORDER BY workspace_id
         LIMIT $3
           FOR UPDATE SKIP LOCKED) free
 WHERE h.workspace_id = free.workspace_id
RETURNING h.workspace_id, h.relayed_seq;

-- name: advance_relay
-- What the stream has confirmed; extends the lease, or ends it where $4 is null, and changes nothing for one that somebody else took over.
UPDATE event_head
   SET relayed_seq = greatest(relayed_seq, $3), relay_token = CASE WHEN $4::float8 IS NOT NULL THEN relay_token END,
       relay_until = clock_timestamp() + $4 * interval '1 second'
 WHERE workspace_id = $1 AND relay_token = $2
RETURNING relayed_seq;

-- name: release_relay
-- Done for now: the next event is anybody's.
UPDATE event_head SET relay_token = NULL, relay_until = NULL WHERE workspace_id = $1 AND relay_token = $2;
