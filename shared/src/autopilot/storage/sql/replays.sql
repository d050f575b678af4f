-- name: find_replay
-- The replay that an earlier request with this key made of a delivery (S9.11).
SELECT id FROM webhook_delivery WHERE replayed_from = $1 AND replay_key = $2;

-- name: find_trigger
-- The trigger of a delivery, which never changes, read before anything is locked.
SELECT trigger_id FROM webhook_delivery WHERE workspace_id = $1 AND autopilot_id = $2 AND id = $3;

-- name: hold_original
-- Level 7 of the lock order: retention takes neither the delivery nor its body until the replay is there. No row: it already has.
SELECT status FROM webhook_delivery WHERE id = $1 FOR KEY SHARE;

-- name: insert_replay
-- A delivery like the original, undecided and without a dedupe key, with a body of its own; nothing where the body is gone, or where the
-- same key is used at the same moment.
WITH inserted AS (
    INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status, headers,
           content_type, response_status, response_body, replayed_from, replayed_by, replay_key)
    SELECT $1, o.workspace_id, o.autopilot_id, o.trigger_id, o.provider, o.event, o.signature_status, 'queued', o.headers, o.content_type,
           202, jsonb_build_object('status', 'queued', 'delivery_id', $1::uuid), o.id, $3, $4
      FROM webhook_delivery o
      JOIN webhook_body b ON b.delivery_id = o.id
     WHERE o.id = $2
        ON CONFLICT DO NOTHING
 RETURNING id
), bodies AS (
    INSERT INTO webhook_body (delivery_id, body, raw_size)
    SELECT i.id, b.body, b.raw_size FROM inserted i JOIN webhook_body b ON b.delivery_id = $2
)
SELECT EXISTS (SELECT 1 FROM inserted) AS inserted, EXISTS (SELECT 1 FROM webhook_body b WHERE b.delivery_id = $2) AS has_body;
