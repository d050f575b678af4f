-- name: find_delivery
-- One delivery of a rule with all that was kept of it; the body is its own row, which retention takes first.
SELECT d.id, d.workspace_id, d.autopilot_id, d.trigger_id, d.provider, d.event, d.dedupe_key, d.dedupe_source, d.signature_status, d.status,
       d.attempt_count, d.headers, d.content_type, d.response_status, d.response_body, d.run_id, r.status AS run_status, d.error,
       d.reason_code, d.replayed_from, d.replayed_by, d.received_at, d.last_attempt_at,
       coalesce(q.attempts, p.attempts, r.dispatch_attempts, 0) AS dispatch_attempts, p.available_at AS next_attempt_at,
       CASE WHEN q.lease_until > clock_timestamp() THEN q.lease_until END AS lease_until,
       b.body, b.raw_size, b.delivery_id IS NULL AS body_expired
  FROM webhook_delivery d
  LEFT JOIN webhook_body b ON b.delivery_id = d.id
  LEFT JOIN autopilot_run r ON r.id = d.run_id
  LEFT JOIN LATERAL (SELECT x.attempts, x.lease_until FROM dispatch_queue x WHERE x.run_id = d.run_id
                      UNION ALL
                     SELECT x.attempts, x.lease_until FROM dispatch_queue x WHERE x.delivery_id = d.id) q ON true
  LEFT JOIN LATERAL (SELECT x.attempts, x.available_at FROM dispatch_deferred x WHERE x.run_id = d.run_id
                      UNION ALL
                     SELECT x.attempts, x.available_at FROM dispatch_deferred x WHERE x.delivery_id = d.id) p ON true
 WHERE d.workspace_id = $1 AND d.autopilot_id = $2 AND d.id = $3;

-- name: list_deliveries
-- A page of a rule's deliveries, newest first, without their bodies: the page is cut before anything is looked up for it.
SELECT d.id, d.workspace_id, d.autopilot_id, d.trigger_id, d.provider, d.event, d.dedupe_key, d.dedupe_source, d.signature_status, d.status,
       d.attempt_count, d.headers, d.content_type, d.response_status, d.response_body, d.run_id, r.status AS run_status, d.error,
       d.reason_code, d.replayed_from, d.replayed_by, d.received_at, d.last_attempt_at,
       coalesce(q.attempts, p.attempts, r.dispatch_attempts, 0) AS dispatch_attempts, p.available_at AS next_attempt_at,
       CASE WHEN q.lease_until > clock_timestamp() THEN q.lease_until END AS lease_until,
       NULL::bytea AS body, false AS body_expired
  FROM (SELECT x.id, x.workspace_id, x.autopilot_id, x.trigger_id, x.provider, x.event, x.dedupe_key, x.dedupe_source, x.signature_status,
               x.status, x.attempt_count, x.headers, x.content_type, x.response_status, x.response_body, x.run_id, x.error, x.reason_code,
               x.replayed_from, x.replayed_by, x.received_at, x.last_attempt_at
          FROM webhook_delivery x
         WHERE x.autopilot_id = $2 AND x.workspace_id = $1
           AND ($3::uuid IS NULL OR x.id < $3)
           AND ($4::uuid IS NULL OR x.trigger_id = $4)
         ORDER BY x.id DESC
         LIMIT $5
        OFFSET $6) d
  LEFT JOIN autopilot_run r ON r.id = d.run_id
  LEFT JOIN LATERAL (SELECT x.attempts, x.lease_until FROM dispatch_queue x WHERE x.run_id = d.run_id
                      UNION ALL
                     SELECT x.attempts, x.lease_until FROM dispatch_queue x WHERE x.delivery_id = d.id) q ON true
  LEFT JOIN LATERAL (SELECT x.attempts, x.available_at FROM dispatch_deferred x WHERE x.run_id = d.run_id
                      UNION ALL
                     SELECT x.attempts, x.available_at FROM dispatch_deferred x WHERE x.delivery_id = d.id) p ON true
 ORDER BY d.id DESC;
