"""A small database in which every invariant holds and every kind of row has an example, for tests that break one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

import asyncpg
from tests.support.postgres import cloned_database

from autopilot.kit.ids import uuid7

_CONFIGURATION = """
INSERT INTO workspace (id, slug, name, issue_prefix) VALUES ({ws}, 'acme', 'Acme', 'ACM'), ({ws2}, 'other', 'Other', 'OTH');
INSERT INTO workspace_counter (workspace_id, last_issue_number) VALUES ({ws}, 2), ({ws2}, 0);
INSERT INTO app_user (id, email, name) VALUES ({ann}, 'ann@example.org', 'Ann'), ({bob}, 'bob@example.org', 'Bob');
INSERT INTO member (workspace_id, user_id, role) VALUES ({ws}, {ann}, 'owner'), ({ws}, {bob}, 'member');
INSERT INTO api_token (id, kind, name, token_hash, hint, user_id, workspace_id, created_by, expires_at)
VALUES ({token}, 'personal', 'laptop', 'hash', 'abcd', {ann}, NULL, {ann}, now() + interval '90 days');
INSERT INTO runtime (id, workspace_id, name, registered_by) VALUES ({runtime}, {ws}, 'box', {ann});
INSERT INTO runtime_heartbeat (runtime_id, seen_at) VALUES ({runtime}, now());
INSERT INTO agent (id, workspace_id, name, owner_id, runtime_id) VALUES ({agent}, {ws}, 'coder', {ann}, {runtime});
INSERT INTO agent_share (workspace_id, agent_id, user_id) VALUES ({ws}, {agent}, {bob});
INSERT INTO squad (id, workspace_id, name, leader_id, created_by) VALUES ({squad}, {ws}, 'team', {agent}, {ann});
INSERT INTO project (id, workspace_id, name, created_by) VALUES ({project}, {ws}, 'site', {ann});
INSERT INTO autopilot (id, workspace_id, title, description, execution_mode, assignee_type, agent_id, project_id, overlap_policy,
                       creator_id, rule_owner_id, version, version_id)
VALUES ({rule}, {ws}, 'Triage', 'Do.', 'create_issue', 'agent', {agent}, {project}, 'allow', {ann}, {ann}, 2, {rule_v2}),
       ({bare}, {ws}, 'Report', 'Do.', 'run_only', 'agent', {agent}, NULL, 'allow', {ann}, {ann}, 1, {bare_v1}),
       ({strict}, {ws}, 'Sweep', 'Do.', 'run_only', 'agent', {agent}, NULL, 'queue_one', {ann}, {ann}, 1, {strict_v1});
INSERT INTO autopilot_rule_version (id, workspace_id, autopilot_id, version, publisher_type, published_by, change, rule)
VALUES ({rule_v1}, {ws}, {rule}, 1, 'user', {ann}, 'created', '{{}}'), ({rule_v2}, {ws}, {rule}, 2, 'user', {ann}, 'edited', '{{}}'),
       ({bare_v1}, {ws}, {bare}, 1, 'user', {ann}, 'created', '{{}}'), ({strict_v1}, {ws}, {strict}, 1, 'user', {ann}, 'created', '{{}}');
INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, cron, timezone, catch_up,
                               tzdata_version, next_run_at)
VALUES ({cron}, {ws}, {rule}, 'schedule', {ann}, {rule_v2}, '0 * * * *', 'UTC', 'latest', '2025b', now() + interval '1 day'),
       ({never}, {ws}, {rule}, 'schedule', {ann}, {rule_v2}, '0 0 30 2 *', 'UTC', 'all', '2025b', NULL),
       ({tick}, {ws}, {strict}, 'schedule', {ann}, {strict_v1}, '* * * * *', 'UTC', 'latest', '2025b', now() + interval '1 day');
INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_by, published_version_id, provider, token_hash, token_enc, token_hint)
VALUES ({hook}, {ws}, {rule}, 'webhook', {ann}, {rule_v2}, 'generic', 'hook', 'enc', 'abcd');
"""

_ADMITTED = """
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
                           planned_at, webhook_delivery_id, originator_id, accountable_id, attribution_source)
VALUES ({manual}, {ws}, {rule}, NULL, 'manual', 'pending', 'create_issue', {rule_v2}, 2, NULL, NULL, {bob}, {bob}, 'direct_human'),
       ({paced}, {ws}, {rule}, {hook}, 'webhook', 'pending', 'create_issue', {rule_v2}, 2, NULL, {d_paced}, NULL, {ann}, 'trigger_owner'),
       ({opened}, {ws}, {rule}, {cron}, 'schedule', 'pending', 'create_issue', {rule_v2}, 2, '2026-01-01 10:00Z', NULL, NULL, {ann}, 'trigger_owner'),
       ({hooked}, {ws}, {rule}, {hook}, 'webhook', 'pending', 'create_issue', {rule_v2}, 2, NULL, {d_hooked}, NULL, {ann}, 'trigger_owner'),
       ({given_up}, {ws}, {rule}, {hook}, 'webhook', 'pending', 'create_issue', {rule_v2}, 2, NULL, {d_given_up}, NULL, {ann}, 'trigger_owner'),
       ({refused}, {ws}, {rule}, {hook}, 'webhook', 'pending', 'create_issue', {rule_v2}, 2, NULL, {d_refused}, NULL, {ann}, 'trigger_owner'),
       ({running}, {ws}, {bare}, NULL, 'api', 'pending', 'run_only', {bare_v1}, 1, NULL, NULL, NULL, {ann}, 'rule_owner'),
       ({broken}, {ws}, {bare}, NULL, 'manual', 'pending', 'run_only', {bare_v1}, 1, NULL, NULL, {ann}, {ann}, 'direct_human'),
       ({first}, {ws}, {strict}, {tick}, 'schedule', 'pending', 'run_only', {strict_v1}, 1, '2026-01-01 10:00Z', NULL, NULL, {ann}, 'trigger_owner'),
       ({parked}, {ws}, {strict}, {tick}, 'schedule', 'pending', 'run_only', {strict_v1}, 1, '2026-01-01 10:01Z', NULL, NULL, {ann}, 'trigger_owner');
INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
                           planned_at, reason_code, failure_reason, completed_at, accountable_id, attribution_source)
VALUES ({missed}, {ws}, {rule}, {cron}, 'schedule', 'skipped', 'create_issue', {rule_v2}, 2, '2026-01-01 09:00Z',
        'schedule_missed', 'too late', clock_timestamp(), {ann}, 'trigger_owner');
INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id, lease_token,
                                 started_at, stale_at, schedule_rev, result, error_code, next_retry_at, finished_at)
SELECT x.id, 'autopilot_schedule_dispatch', 'trigger', x.scope, x.plan, x.state, 3, true, {runner}, {lease}, now(), clock_timestamp() + interval '1 day',
       1, x.result, x.error, x.retry, CASE WHEN x.state <> 'RUNNING' THEN clock_timestamp() END
  FROM (VALUES ({e_opened}::uuid, {cron}, '2026-01-01 10:00Z'::timestamptz, 'SUCCESS', '{{}}'::jsonb, NULL, NULL::timestamptz),
               ({e_missed}, {cron}, '2026-01-01 09:00Z', 'SUCCESS', '{{}}', NULL, NULL),
               ({e_first}, {tick}, '2026-01-01 10:00Z', 'SUCCESS', '{{}}', NULL, NULL),
               ({e_parked}, {tick}, '2026-01-01 10:01Z', 'SUCCESS', '{{}}', NULL, NULL),
               ({e_not_due}, {cron}, '2026-01-01 08:00Z', 'SUCCESS', '{{"outcome": "not_due"}}', NULL, NULL),
               ({e_retry}, {cron}, '2026-01-01 07:00Z', 'FAILED', NULL, 'handler_error', now() + interval '1 day'),
               ({e_working}, {cron}, '2026-01-01 06:00Z', 'RUNNING', NULL, NULL, NULL)) AS x (id, scope, plan, state, result, error, retry);
INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, dedupe_key, dedupe_source, signature_status,
                              status, headers, response_status, response_body, run_id, reason_code)
SELECT x.id, {ws}, {rule}, {hook}, 'generic', 'push', x.key, CASE WHEN x.key IS NOT NULL THEN 'idempotency_key' END,
       CASE x.status WHEN 'rejected' THEN 'invalid' ELSE 'not_required' END, x.status, '{{}}', 200, '{{}}', x.run, x.reason
  FROM (VALUES ({d_paced}::uuid, 'queued', 'k1', {paced}::uuid, NULL), ({d_hooked}, 'dispatched', 'k2', {hooked}, NULL),
               ({d_given_up}, 'failed', 'k3', {given_up}, 'dispatch_exhausted'), ({d_refused}, 'dispatched', 'k4', {refused}, NULL),
               ({d_undecided}, 'queued', 'k5', NULL, NULL), ({d_ignored}, 'ignored', 'k6', NULL, 'event_filtered'),
               ({d_rejected}, 'rejected', NULL, NULL, 'invalid_signature')) AS x (id, status, key, run, reason);
INSERT INTO webhook_delivery (id, workspace_id, autopilot_id, trigger_id, provider, event, signature_status, status, headers,
                              response_status, response_body, reason_code, replayed_from, replayed_by)
VALUES ({d_replay}, {ws}, {rule}, {hook}, 'generic', 'push', 'not_required', 'ignored', '{{}}', 202, '{{}}', 'event_filtered', {d_hooked}, {ann}),
       ({d_lost}, {ws}, {rule}, {hook}, 'generic', 'push', 'not_required', 'failed', '{{}}', 202, '{{}}', 'internal_error', NULL, NULL);
INSERT INTO webhook_dedupe (trigger_id, dedupe_key, delivery_id, body_sha)
SELECT trigger_id, dedupe_key, id, sha256('body') FROM webhook_delivery WHERE id IN ({d_paced}, {d_hooked}, {d_undecided});
INSERT INTO trigger_pace (trigger_id, pace_per_min, granted_at) VALUES ({hook}, 1, ARRAY[now()]);
INSERT INTO dispatch_queue (run_id, autopilot_id) VALUES ({manual}, {rule});
INSERT INTO dispatch_queue (delivery_id, autopilot_id, trigger_id) VALUES ({d_undecided}, {rule}, {hook});
INSERT INTO dispatch_deferred (kind, run_id, autopilot_id, trigger_id, available_at, enqueued_at)
VALUES ('paced', {paced}, {rule}, {hook}, now() + interval '1 day', now()),
       ('parked', {parked}, {strict}, {tick}, now() + interval '1 day', now());
UPDATE dispatch_queue SET enqueued_at = now() + interval '1 day';
"""

_DISPATCHED = """
INSERT INTO issue (id, workspace_id, number, title, body, status, assignee_type, assignee_id, creator_type, creator_id, origin_autopilot_id, origin_run_id)
VALUES ({i_opened}, {ws}, 1, 'Triage', '…', 'todo', 'agent', {agent}, 'agent', {agent}, {rule}, {opened}),
       ({i_hooked}, {ws}, 2, 'Triage', '…', 'in_review', 'agent', {agent}, 'agent', {agent}, {rule}, {hooked});
INSERT INTO issue_comment (id, workspace_id, issue_id, author_type, author_id, body)
VALUES ({comment}, {ws}, {i_hooked}, 'agent', {agent}, 'Done.');
INSERT INTO issue_subscriber (issue_id, user_id, workspace_id, reason) VALUES ({i_opened}, {bob}, {ws}, 'autopilot');
INSERT INTO inbox_item (id, workspace_id, user_id, kind, title) VALUES ({inbox}, {ws}, {bob}, 'issue', 'Triage');
INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, run_id, autopilot_id, prompt, status, runtime_id, lease_token, lease_until,
                        claimed_at, finished_at, result, error, failure_kind)
SELECT x.id, {ws}, {agent}, x.issue, x.run, x.rule, 'Do.', x.status, {runtime}, x.lease, x.lease_until, now(),
       CASE WHEN x.status IN ('completed', 'failed') THEN clock_timestamp() END, x.result, x.error, x.failure
  FROM (VALUES ({t_opened}::uuid, {i_opened}::uuid, {opened}::uuid, {rule}::uuid, 'queued', NULL::uuid, NULL::timestamptz, NULL, NULL, NULL),
               ({t_hooked}, {i_hooked}, {hooked}, {rule}, 'completed', {lease}, now(), 'Done.', NULL, NULL),
               ({t_running}, NULL, {running}, {bare}, 'running', {lease}, now() + interval '1 day', NULL, NULL, NULL),
               ({t_broken}, NULL, {broken}, {bare}, 'failed', {lease}, now(), NULL, 'it broke', 'agent'),
               ({t_first}, NULL, {first}, {strict}, 'claimed', {lease}, now() + interval '1 day', NULL, NULL, NULL)
       ) AS x (id, issue, run, rule, status, lease, lease_until, result, error, failure);
INSERT INTO task_output (task_id, attempt, place, text) VALUES ({t_running}, 1, 0, 'Reading.');
UPDATE autopilot_run r
   SET status = CASE WHEN x.issue IS NULL THEN 'running' ELSE 'issue_created' END, issue_id = x.issue, task_id = x.task, started_at = clock_timestamp()
  FROM (VALUES ({opened}::uuid, {i_opened}::uuid, {t_opened}::uuid), ({hooked}, {i_hooked}, {t_hooked}), ({running}, NULL, {t_running}),
               ({broken}, NULL, {t_broken}), ({first}, NULL, {t_first})) AS x (id, issue, task)
 WHERE r.id = x.id;
UPDATE autopilot_run SET status = 'completed', completed_at = clock_timestamp(), result = 'Done.' WHERE id = {hooked};
UPDATE autopilot_run r SET status = x.status, completed_at = clock_timestamp(), reason_code = x.code, failure_reason = 'because'
  FROM (VALUES ({broken}::uuid, 'failed', 'task_failed'), ({given_up}, 'failed', 'dispatch_exhausted'),
               ({refused}, 'skipped', 'runtime_offline')) AS x (id, status, code)
 WHERE r.id = x.id;
INSERT INTO run_event (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
SELECT workspace_id, row_number() OVER (ORDER BY id), event_id, autopilot_id, run_id, kind, payload, occurred_at
  FROM run_event_outbox ORDER BY id LIMIT 5;
DELETE FROM run_event_outbox o USING run_event e WHERE e.event_id = o.event_id;
INSERT INTO event_head (workspace_id, last_seq, relayed_seq) SELECT workspace_id, max(seq), max(seq) FROM run_event GROUP BY workspace_id;
UPDATE run_event_outbox SET occurred_at = now() + interval '1 day';
"""


class Ids(dict[str, UUID]):
    """The ids of rows by name, made at the first mention."""

    def __missing__(self, name: str) -> UUID:
        self[name] = uuid7()
        return self[name]


class _Literals(dict[str, str]):
    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def __missing__(self, name: str) -> str:
        return f"'{self._ids[name]}'"


class World:
    """A connection and the rows by name: `{opened}` in a statement is the quoted id of the row called opened."""

    def __init__(self, conn: asyncpg.Connection[asyncpg.Record], ids: Ids) -> None:
        self.conn = conn
        self.ids = ids

    async def run(self, script: str) -> None:
        """Execute statements; braces that are meant themselves are doubled."""
        await self.conn.execute(script.format_map(_Literals(self.ids)))


async def build(url: str) -> Ids:
    """Fill an empty, migrated database; answers the ids of its rows.

    Runs by name: manual and paced (pending), opened (issue_created), hooked (completed), running, broken (failed after
    a start), given_up (failed without one), missed and refused (skipped), first (running) with parked behind it.
    Whatever waits is due in a day, so that nothing is overdue however long the tests of a module take.
    """
    conn = await asyncpg.connect(url)
    try:
        world = World(conn, Ids())
        async with conn.transaction():
            for part in (_CONFIGURATION, _ADMITTED, _DISPATCHED):
                await world.run(part)
        return world.ids
    finally:
        await conn.close()


@contextmanager
def coherent_database(admin: str, template: str) -> Iterator[tuple[str, Ids]]:
    """A database with the world in it, for many tests that each work in a transaction of their own and roll it back."""
    clone = cloned_database(admin, template)
    with asyncio.Runner() as runner:  # one loop for all of it: the end of a loop would end the clone
        url = runner.run(clone.__aenter__())
        try:
            yield url, runner.run(build(url))
        finally:
            runner.run(clone.__aexit__(None, None, None))


@asynccontextmanager
async def rolled_back(url: str, ids: Ids) -> AsyncIterator[World]:
    """The world on a connection whose transaction is rolled back at the end."""
    conn = await asyncpg.connect(url)
    try:
        transaction = conn.transaction()
        await transaction.start()
        yield World(conn, ids)
    finally:
        await conn.close()
