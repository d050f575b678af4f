-- name: add_output
-- A piece of what a held task's command prints, behind those that are there: the same piece again changes nothing. What lies more than
-- so many characters before it goes. No row: this lease does not hold the task.
WITH held AS MATERIALIZED (
    SELECT t.id, t.attempt,
           coalesce((SELECT o.place + length(o.text) FROM task_output o
                      WHERE o.task_id = t.id AND o.attempt = t.attempt ORDER BY o.place DESC LIMIT 1), 0) AS ends
      FROM agent_task t
     WHERE t.id = $1 AND t.lease_token = $2 AND t.status IN ('claimed', 'running')
), added AS (
    INSERT INTO task_output (task_id, attempt, place, text)
    SELECT h.id, h.attempt, $3, $4 FROM held h WHERE $3 >= h.ends
        ON CONFLICT DO NOTHING
), trimmed AS (
    DELETE FROM task_output o USING held h
     WHERE o.task_id = h.id AND o.attempt = h.attempt AND o.place < $3::bigint + length($4) - $5
)
SELECT attempt FROM held;

-- name: list_output
-- The next pieces of an attempt from a place on, in order.
SELECT place, text, created_at FROM task_output
 WHERE task_id = $1 AND attempt = $2 AND place >= $3
 ORDER BY place
 LIMIT $4;
