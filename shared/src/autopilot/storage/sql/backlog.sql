-- name: measure
-- What waits at each step from a due occurrence to an event in the stream, and for how many seconds the oldest has. Counted up to $1: beyond
-- it a queue by the range of its numbers, what is deferred by the planner's estimate, and everything else not at all, so that looking costs the
-- same however much waits. A task is due when its agent's runtime was heard of within $2 seconds: one that waits for a runtime may do so for ever.
WITH occurrences AS (
    SELECT count(*) AS items, min(t.next_run_at) AS since
      FROM (SELECT next_run_at FROM autopilot_trigger WHERE next_run_at <= statement_timestamp() ORDER BY next_run_at LIMIT $1) t
), deliveries AS (
    SELECT count(*) AS items, min(d.enqueued_at) AS since
      FROM (SELECT enqueued_at FROM dispatch_queue WHERE delivery_id IS NOT NULL ORDER BY seq LIMIT $1) d
), queue AS (
    SELECT (SELECT count(*) FROM (SELECT 1 FROM dispatch_queue LIMIT $1) c) AS counted,
           (SELECT max(q.seq) - min(q.seq) + 1 FROM dispatch_queue q) AS spanned,
           (SELECT min(f.enqueued_at) FILTER (WHERE f.run_id IS NOT NULL)
              FROM (SELECT q.run_id, q.enqueued_at FROM dispatch_queue q ORDER BY q.seq LIMIT least($1, 1000)) f) AS since
), deferred AS (
    SELECT count(*) AS counted, count(*) FILTER (WHERE s.kind = 'retry') AS retries, count(*) FILTER (WHERE s.kind = 'paced') AS paced,
           count(*) FILTER (WHERE s.kind = 'parked') AS parked
      FROM (SELECT d.kind FROM dispatch_deferred d LIMIT $1) s
), scale AS (
    SELECT CASE WHEN d.counted < $1 THEN 1
                ELSE greatest(1, (SELECT c.reltuples FROM pg_class c WHERE c.oid = 'dispatch_deferred'::regclass) / d.counted) END AS by
      FROM deferred d
), tasks AS (
    SELECT count(*) AS items,
           min(t.available_at) FILTER (WHERE h.usable AND h.seen_at >= clock_timestamp() - $2 * interval '1 second'
                                         AND t.available_at <= clock_timestamp()) AS since
      FROM (SELECT agent_id, available_at FROM agent_task WHERE status = 'queued' LIMIT $1) t
      JOIN agent a ON a.id = t.agent_id
      LEFT JOIN runtime_heartbeat h ON h.runtime_id = a.runtime_id
), events AS (
    SELECT (SELECT count(*) FROM (SELECT 1 FROM run_event_outbox LIMIT $1) c) AS items,
           (SELECT o.occurred_at FROM run_event_outbox o ORDER BY o.id LIMIT 1) AS since
), unconfirmed AS (
    SELECT sum(h.last_seq - h.relayed_seq) AS items FROM event_head h WHERE h.relayed_seq < h.last_seq
), relays AS (
    SELECT u.items,
           (SELECT min(e.occurred_at)
              FROM (SELECT workspace_id, relayed_seq FROM event_head WHERE relayed_seq < last_seq LIMIT 100) h
              JOIN run_event e ON e.workspace_id = h.workspace_id AND e.seq = h.relayed_seq + 1) AS since
      FROM unconfirmed u
), waiting (kind, items, since) AS (
    SELECT 'occurrence', o.items, o.since FROM occurrences o
     UNION ALL SELECT 'delivery', d.items, d.since FROM deliveries d
     UNION ALL SELECT 'run', greatest(0, CASE WHEN q.counted < $1 THEN q.counted ELSE greatest(q.counted, q.spanned) END - d.items), q.since
                 FROM queue q, deliveries d
     UNION ALL SELECT 'retry', d.retries * s.by, NULL FROM deferred d, scale s
     UNION ALL SELECT 'paced', d.paced * s.by, NULL FROM deferred d, scale s
     UNION ALL SELECT 'parked', d.parked * s.by, NULL FROM deferred d, scale s
     UNION ALL SELECT 'task', t.items, t.since FROM tasks t
     UNION ALL SELECT 'event', e.items, e.since FROM events e
     UNION ALL SELECT 'relay', coalesce(r.items, 0), r.since FROM relays r
)
SELECT w.kind, w.items::bigint AS items, greatest(0, coalesce(extract(epoch FROM clock_timestamp() - w.since), 0))::float8 AS oldest_s
  FROM waiting w;
