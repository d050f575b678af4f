"""S2.2, S2.4 and their like: the database itself refuses every state that may not be, by the name of the broken rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from tests.support.coherent_world import Ids, World, coherent_database, rolled_back

from autopilot.storage.errors import ConstraintViolated, translated


@pytest.fixture(scope="module")
def coherent(postgres_admin_url: str, postgres_template: str) -> Iterator[tuple[str, Ids]]:
    with coherent_database(postgres_admin_url, postgres_template) as made:
        yield made


@pytest.fixture
async def world(coherent: tuple[str, Ids]) -> AsyncIterator[World]:
    async with rolled_back(*coherent) as world:
        yield world


# The constraint, the table, which row of the coherent world, and the change that it must refuse.
CHECKS = [
    ("workspace_slug_form", "workspace", "id = {ws}", "slug = 'Not a slug'"),
    ("workspace_name_length", "workspace", "id = {ws}", "name = ''"),
    ("workspace_issue_prefix_form", "workspace", "id = {ws}", "issue_prefix = 'acm'"),
    ("workspace_attribution_policy_known", "workspace", "id = {ws}", "attribution_policy = 'anybody'"),
    ("workspace_counter_positive", "workspace_counter", "true", "last_issue_number = -1"),
    ("app_user_email_form", "app_user", "id = {ann}", "email = 'Ann@example.org'"),
    ("app_user_name_length", "app_user", "id = {ann}", "name = ''"),
    ("member_role_known", "member", "user_id = {ann}", "role = 'king'"),
    ("api_token_kind_known", "api_token", "id = {token}", "kind = 'magic', user_id = NULL, workspace_id = {ws}"),
    ("api_token_name_length", "api_token", "id = {token}", "name = ''"),
    ("api_token_owner", "api_token", "id = {token}", "kind = 'service', workspace_id = {ws}"),
    ("runtime_name_length", "runtime", "id = {runtime}", "name = ''"),
    ("runtime_registered_as_length", "runtime", "id = {runtime}", "registered_as = ''"),
    ("runtime_concurrency_range", "runtime", "id = {runtime}", "concurrency = 0"),
    ("runtime_concurrency_range", "runtime", "id = {runtime}", "concurrency_limit = 0"),
    ("runtime_capabilities_size", "runtime", "id = {runtime}", "capabilities = jsonb_build_object('a', repeat('x', 16384))"),
    ("runtime_heartbeat_detail_length", "runtime_heartbeat", "true", "detail = repeat('x', 2001)"),
    ("agent_name_length", "agent", "id = {agent}", "name = ''"),
    ("agent_visibility_known", "agent", "id = {agent}", "visibility = 'public'"),
    ("squad_name_length", "squad", "id = {squad}", "name = ''"),
    ("project_name_length", "project", "id = {project}", "name = ''"),
    ("autopilot_title_length", "autopilot", "id = {rule}", "title = repeat('x', 201)"),
    ("autopilot_description_length", "autopilot", "id = {rule}", "description = repeat('é', 32769)"),
    ("autopilot_template_length", "autopilot", "id = {rule}", "issue_title_template = ''"),
    ("autopilot_mode_known", "autopilot", "id = {rule}", "execution_mode = 'both'"),
    ("autopilot_overlap_known", "autopilot", "id = {rule}", "overlap_policy = 'queue_all'"),
    ("autopilot_status_known", "autopilot", "id = {rule}", "status = 'asleep'"),
    ("autopilot_pause_reason_known", "autopilot", "id = {rule}", "status = 'paused', pause_reason = 'bored'"),
    ("autopilot_pause_reason_only_paused", "autopilot", "id = {rule}", "pause_reason = 'owner_left'"),
    ("autopilot_archived_at_coherent", "autopilot", "id = {rule}", "status = 'archived'"),
    ("autopilot_assignee_coherent", "autopilot", "id = {rule}", "squad_id = {squad}"),
    ("autopilot_trigger_kind_known", "autopilot_trigger", "id = {hook}", "kind = 'mail', provider = NULL, token_hash = NULL, token_enc = NULL, token_hint = NULL"),
    ("autopilot_trigger_label_length", "autopilot_trigger", "id = {hook}", "label = ''"),
    ("autopilot_trigger_schedule_fields", "autopilot_trigger", "id = {cron}", "timezone = NULL"),
    ("autopilot_trigger_schedule_fields", "autopilot_trigger", "id = {hook}", "lateness_s = 60"),
    ("autopilot_trigger_webhook_fields", "autopilot_trigger", "id = {hook}", "token_enc = NULL"),
    ("autopilot_trigger_webhook_fields", "autopilot_trigger", "id = {cron}", "pace_per_min = 60"),
    ("autopilot_trigger_cron_length", "autopilot_trigger", "id = {cron}", "cron = repeat('*', 257)"),
    ("autopilot_trigger_catch_up_known", "autopilot_trigger", "id = {cron}", "catch_up = 'some'"),
    ("autopilot_trigger_lateness_range", "autopilot_trigger", "id = {cron}", "lateness_s = -1"),
    ("autopilot_trigger_lateness_range", "autopilot_trigger", "id = {cron}", "lateness_s = 60, catch_up = 'all'"),
    ("autopilot_trigger_next_run_live", "autopilot_trigger", "id = {cron}", "enabled = false"),
    ("autopilot_trigger_next_run_live", "autopilot_trigger", "id = {cron}", "schedule_error = 'broken'"),
    ("autopilot_trigger_pace_range", "autopilot_trigger", "id = {hook}", "pace_per_min = 0"),
    ("autopilot_trigger_secret_coherent", "autopilot_trigger", "id = {hook}", "secret_enc = 'x'"),
    ("autopilot_trigger_previous_secret_coherent", "autopilot_trigger", "id = {hook}", "previous_secret_enc = 'x'"),
    ("autopilot_trigger_dead_token", "autopilot_trigger", "id = {hook}", "deleted_at = now()"),
    ("autopilot_run_source_known", "autopilot_run", "id = {running}", "source = 'dream'"),
    ("autopilot_run_status_known", "autopilot_run", "id = {manual}", "status = 'lost'"),
    ("autopilot_run_mode_known", "autopilot_run", "id = {manual}", "execution_mode = 'both'"),
    ("autopilot_run_issue_created_has_issue", "autopilot_run", "id = {opened}", "issue_id = NULL"),
    ("autopilot_run_issue_created_has_issue", "autopilot_run", "id = {opened}", "task_id = NULL, started_at = NULL"),
    ("autopilot_run_issue_created_has_issue", "autopilot_run", "id = {opened}", "execution_mode = 'run_only'"),
    ("autopilot_run_running_has_task", "autopilot_run", "id = {running}", "task_id = NULL, started_at = NULL"),
    ("autopilot_run_running_has_task", "autopilot_run", "id = {running}", "execution_mode = 'create_issue'"),
    ("autopilot_run_completed_was_started", "autopilot_run", "id = {hooked}", "task_id = NULL, started_at = NULL"),
    ("autopilot_run_pending_is_bare", "autopilot_run", "id = {manual}", "issue_id = {i_opened}"),
    ("autopilot_run_pending_is_bare", "autopilot_run", "id = {missed}", "task_id = {t_opened}, started_at = now()"),
    ("autopilot_run_started_coherent", "autopilot_run", "id = {given_up}", "started_at = now()"),
    ("autopilot_run_final_has_end", "autopilot_run", "id = {hooked}", "completed_at = NULL"),
    ("autopilot_run_final_has_end", "autopilot_run", "id = {manual}", "completed_at = now()"),
    ("autopilot_run_reason_given", "autopilot_run", "id = {missed}", "reason_code = NULL"),
    ("autopilot_run_reason_given", "autopilot_run", "id = {missed}", "failure_reason = NULL"),
    ("autopilot_run_reason_given", "autopilot_run", "id = {hooked}", "reason_code = 'internal_error', failure_reason = 'x'"),
    ("autopilot_run_reason_known", "autopilot_run", "id = {missed}", "reason_code = 'bad_luck'"),
    ("autopilot_run_failure_reason_length", "autopilot_run", "id = {missed}", "failure_reason = ''"),
    ("autopilot_run_result_length", "autopilot_run", "id = {hooked}", "result = repeat('x', 65537)"),
    ("autopilot_run_trigger_by_source", "autopilot_run", "id = {manual}", "trigger_id = {hook}"),
    ("autopilot_run_trigger_by_source", "autopilot_run", "id = {missed}", "trigger_id = NULL, attribution_source = 'rule_owner'"),
    ("autopilot_run_planned_by_source", "autopilot_run", "id = {manual}", "planned_at = now()"),
    ("autopilot_run_planned_by_source", "autopilot_run", "id = {opened}", "planned_at = NULL"),
    ("autopilot_run_delivery_by_source", "autopilot_run", "id = {manual}", "webhook_delivery_id = {nothing}"),
    ("autopilot_run_delivery_by_source", "autopilot_run", "id = {paced}", "webhook_delivery_id = NULL"),
    ("autopilot_run_originator_is_present", "autopilot_run", "id = {paced}", "originator_id = {ann}"),
    ("autopilot_run_originator_is_present", "autopilot_run", "id = {manual}", "originator_id = NULL"),
    ("autopilot_run_originator_accounts", "autopilot_run", "id = {manual}", "accountable_id = {ann}"),
    ("autopilot_run_accountable", "autopilot_run", "id = {running}", "accountable_id = NULL, attribution_source = NULL"),
    ("autopilot_run_attribution_known", "autopilot_run", "id = {running}", "attribution_source = 'whoever'"),
    ("autopilot_run_attribution_known", "autopilot_run", "id = {running}", "attribution_source = NULL"),
    ("autopilot_run_attribution_by_source", "autopilot_run", "id = {running}", "attribution_source = 'direct_human'"),
    ("autopilot_run_attribution_by_source", "autopilot_run", "id = {running}", "attribution_source = 'trigger_owner'"),
    ("autopilot_run_attribution_by_source", "autopilot_run", "id = {manual}", "attribution_source = 'rule_owner'"),
    ("autopilot_run_token_by_source", "autopilot_run", "id = {manual}", "api_token_id = {token}"),
    ("autopilot_run_idempotency_coherent", "autopilot_run", "id = {manual}", "idempotency_key = 'k'"),
    ("autopilot_run_idempotency_length", "autopilot_run", "id = {manual}", "idempotency_key = '', idempotency_actor = {bob}, idempotency_sha = 'x'"),
    ("autopilot_run_payload_size", "autopilot_run", "id = {running}", "payload = decode(repeat('00', 262145), 'hex')"),
    ("trigger_pace_range", "trigger_pace", "trigger_id = {hook}", "pace_per_min = 6001"),
    ("dispatch_queue_one_subject", "dispatch_queue", "run_id = {manual}", "delivery_id = {nothing}"),
    ("dispatch_queue_one_subject", "dispatch_queue", "run_id = {manual}", "run_id = NULL"),
    ("dispatch_queue_lease_coherent", "dispatch_queue", "run_id = {manual}", "lease_token = {lease}"),
    ("dispatch_deferred_kind_known", "dispatch_deferred", "run_id = {paced}", "kind = 'later'"),
    ("dispatch_deferred_one_subject", "dispatch_deferred", "run_id = {paced}", "run_id = NULL"),
    ("webhook_delivery_event_length", "webhook_delivery", "id = {d_hooked}", "event = ''"),
    ("webhook_delivery_dedupe_coherent", "webhook_delivery", "id = {d_hooked}", "dedupe_source = NULL"),
    ("webhook_delivery_dedupe_coherent", "webhook_delivery", "id = {d_hooked}", "dedupe_key = ''"),
    ("webhook_delivery_dedupe_source_known", "webhook_delivery", "id = {d_hooked}", "dedupe_source = 'guess'"),
    ("webhook_delivery_signature_known", "webhook_delivery", "id = {d_hooked}", "signature_status = 'odd'"),
    ("webhook_delivery_status_known", "webhook_delivery", "id = {d_undecided}", "status = 'lost'"),
    ("webhook_delivery_rejected_unsigned", "webhook_delivery", "id = {d_hooked}", "signature_status = 'invalid'"),
    ("webhook_delivery_rejected_unsigned", "webhook_delivery", "id = {d_rejected}", "signature_status = 'valid'"),
    ("webhook_delivery_run_by_status", "webhook_delivery", "id = {d_hooked}", "run_id = NULL"),
    ("webhook_delivery_run_by_status", "webhook_delivery", "id = {d_ignored}", "run_id = {manual}"),
    ("webhook_delivery_reason_given", "webhook_delivery", "id = {d_ignored}", "reason_code = NULL"),
    ("webhook_delivery_reason_known", "webhook_delivery", "id = {d_ignored}", "reason_code = 'bad_luck'"),
    ("webhook_delivery_replay_coherent", "webhook_delivery", "id = {d_hooked}", "replayed_from = {d_paced}"),
    ("webhook_delivery_replay_coherent", "webhook_delivery", "id = {d_hooked}", "replay_key = 'k'"),
    ("webhook_body_raw_size_larger", "webhook_body", "", "{d_hooked}, 'text', 4"),
    ("webhook_dedupe_sha_size", "webhook_dedupe", "delivery_id = {d_hooked}", "body_sha = 'short'"),
    ("sys_cron_executions_state_known", "sys_cron_executions", "id = {e_opened}", "state = 'MAYBE'"),
    ("sys_cron_executions_attempts_range", "sys_cron_executions", "id = {e_opened}", "attempts = 0"),
    ("sys_cron_executions_final_has_end", "sys_cron_executions", "id = {e_opened}", "finished_at = NULL"),
    ("sys_cron_executions_final_has_end", "sys_cron_executions", "id = {e_working}", "finished_at = now()"),
    ("sys_cron_executions_error_given", "sys_cron_executions", "id = {e_retry}", "error_code = NULL"),
    ("sys_cron_executions_error_given", "sys_cron_executions", "id = {e_opened}", "error_code = 'handler_error'"),
    ("sys_cron_executions_error_known", "sys_cron_executions", "id = {e_retry}", "error_code = 'bad_luck'"),
    ("sys_cron_executions_retry_only_failed", "sys_cron_executions", "id = {e_opened}", "next_retry_at = now()"),
    ("sys_cron_executions_retry_only_failed", "sys_cron_executions", "id = {e_retry}", "attempts = 3"),
    ("sys_cron_executions_result_size", "sys_cron_executions", "id = {e_opened}", "result = to_jsonb(repeat('x', 16384))"),
    ("sys_cron_executions_message_length", "sys_cron_executions", "id = {e_retry}", "error_message = repeat('x', 4001)"),
    ("issue_title_length", "issue", "id = {i_opened}", "title = ''"),
    ("issue_status_known", "issue", "id = {i_opened}", "status = 'lost'"),
    ("issue_assignee_coherent", "issue", "id = {i_opened}", "assignee_id = NULL"),
    ("issue_assignee_coherent", "issue", "id = {i_opened}", "assignee_type = 'dog'"),
    ("issue_creator_known", "issue", "id = {i_opened}", "creator_type = 'dog'"),
    ("issue_origin_coherent", "issue", "id = {i_opened}", "origin_run_id = NULL"),
    ("issue_closed_at_coherent", "issue", "id = {i_opened}", "status = 'done'"),
    ("issue_comment_author_known", "issue_comment", "id = {comment}", "author_type = 'dog'"),
    ("issue_comment_body_size", "issue_comment", "id = {comment}", "body = repeat('é', 32769)"),
    ("task_output_place_positive", "task_output", "true", "place = -1"),
    ("task_output_size", "task_output", "true", "text = repeat('é', 32769)"),
    ("issue_subscriber_reason_known", "issue_subscriber", "true", "reason = 'curious'"),
    ("agent_task_has_cause", "agent_task", "id = {t_running}", "run_id = NULL"),
    ("agent_task_status_known", "agent_task", "id = {t_opened}", "status = 'lost'"),
    ("agent_task_attempts_range", "agent_task", "id = {t_opened}", "attempt = 2"),
    ("agent_task_timeout_range", "agent_task", "id = {t_opened}", "timeout_s = 0"),
    ("agent_task_held_has_lease", "agent_task", "id = {t_running}", "lease_token = NULL"),
    ("agent_task_queued_is_free", "agent_task", "id = {t_opened}", "lease_until = now()"),
    ("agent_task_final_has_end", "agent_task", "id = {t_hooked}", "finished_at = NULL"),
    ("agent_task_final_has_end", "agent_task", "id = {t_running}", "finished_at = now()"),
    ("agent_task_failed_has_error", "agent_task", "id = {t_broken}", "error = NULL"),
    ("agent_task_failure_kind_known", "agent_task", "id = {t_broken}", "failure_kind = 'bad_luck'"),
    ("agent_task_progress_length", "agent_task", "id = {t_running}", "progress = repeat('x', 2001)"),
    ("agent_task_result_size", "agent_task", "id = {t_hooked}", "result = repeat('é', 32769)"),
    ("agent_task_error_length", "agent_task", "id = {t_broken}", "error = repeat('x', 4001)"),
    ("inbox_item_title_length", "inbox_item", "id = {inbox}", "title = ''"),
    ("run_event_outbox_kind_known", "run_event_outbox", "true", "kind = 'run.lost'"),
    ("run_event_kind_known", "run_event", "seq = 1", "kind = 'run.lost'"),
    ("run_event_seq_positive", "run_event", "seq = 1", "seq = 0"),
    ("event_head_order", "event_head", "true", "relayed_seq = last_seq + 1"),
    ("autopilot_rule_version_positive", "autopilot_rule_version", "", "{extra}, {ws}, {rule}, 0, 'user', {ann}, NULL, 'x', '{{}}'"),
    ("autopilot_rule_version_publisher", "autopilot_rule_version", "", "{extra}, {ws}, {rule}, 3, 'user', NULL, NULL, 'x', '{{}}'"),
    ("autopilot_rule_version_publisher", "autopilot_rule_version", "", "{extra}, {ws}, {rule}, 3, 'system', {ann}, NULL, 'x', '{{}}'"),
]  # fmt: skip

# Statements that a unique index, a foreign key or a trigger refuses.
REFUSED = [
    ("autopilot_run_plan_unique", "UPDATE autopilot_run SET planned_at = '2026-01-01 09:00Z' WHERE id = {opened}"),
    ("autopilot_run_delivery_unique", "UPDATE autopilot_run SET webhook_delivery_id = {d_hooked} WHERE id = {paced}"),
    ("autopilot_run_idempotency_unique", "UPDATE autopilot_run SET idempotency_key = 'k', idempotency_actor = {ann}, idempotency_sha = 'x', originator_id = {ann}, accountable_id = {ann}, autopilot_id = {rule} WHERE source = 'manual'"),
    ("sys_cron_executions_plan_unique", "UPDATE sys_cron_executions SET plan_time = '2026-01-01 09:00Z' WHERE id = {e_opened}"),
    ("dispatch_queue_run_unique", "INSERT INTO dispatch_queue (run_id, autopilot_id) VALUES ({manual}, {rule})"),
    ("dispatch_deferred_parked_unique", "UPDATE dispatch_deferred SET autopilot_id = {strict}, kind = 'parked'"),
    ("webhook_dedupe_pk", "UPDATE webhook_dedupe SET dedupe_key = 'k1'"),
    ("agent_task_one_active_per_issue", "INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, prompt, status) VALUES ({extra}, {ws}, {agent}, {i_opened}, '', 'queued')"),
    ("issue_number_unique", "UPDATE issue SET number = 1"),
    ("issue_origin_run_unique", "UPDATE issue SET origin_run_id = {opened}"),
    ("run_event_once", "UPDATE run_event SET run_id = {opened}, kind = 'run.done'"),
    ("autopilot_trigger_token_unique", "INSERT INTO autopilot_trigger (id, workspace_id, autopilot_id, kind, published_version_id, provider, token_hash, token_enc, token_hint) VALUES ({extra}, {ws}, {rule}, 'webhook', {rule_v2}, 'generic', 'hook', 'enc', 'abcd')"),
    ("autopilot_rule_version_number_unique", "INSERT INTO autopilot_rule_version SELECT {extra}, {ws}, {rule}, 2, 'user', {ann}, NULL, 'x', '{{}}'"),
    ("autopilot_agent_fk", "INSERT INTO agent (id, workspace_id, name, owner_id) VALUES ({extra}, {ws2}, 'x', {ann}); UPDATE autopilot SET agent_id = {extra} WHERE id = {bare}"),
    ("autopilot_trigger_autopilot_fk", "UPDATE autopilot_trigger SET workspace_id = {ws2} WHERE id = {hook}"),
    ("agent_runtime_fk", "UPDATE agent SET runtime_id = {nothing}"),
    ("squad_leader_fk", "UPDATE squad SET leader_id = {nothing}"),
    ("autopilot_rule_version_immutable", "UPDATE autopilot_rule_version SET change = 'nothing to see' WHERE id = {rule_v1}"),
    ("autopilot_rule_version_immutable", "DELETE FROM autopilot_rule_version WHERE id = {rule_v1}"),
    ("autopilot_rule_version_immutable", "TRUNCATE autopilot_rule_version"),
    ("autopilot_rule_version_immutable", "TRUNCATE workspace CASCADE"),
    ("autopilot_run_transition", "UPDATE autopilot_run SET status = 'failed', reason_code = 'task_failed', failure_reason = 'x' WHERE id = {hooked}"),
    ("autopilot_run_transition", "UPDATE autopilot_run SET status = 'completed', reason_code = NULL, failure_reason = NULL WHERE id = {broken}"),
    ("autopilot_run_transition", "UPDATE autopilot_run SET status = 'pending', issue_id = NULL, task_id = NULL, started_at = NULL WHERE id = {opened}"),
    ("autopilot_run_transition", "UPDATE autopilot_run SET status = 'completed', issue_id = {nothing}, task_id = {nothing}, started_at = now(), completed_at = now() WHERE id = {manual}"),
]  # fmt: skip


def _ids(cases: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"S2.2-{number}-{case[0]}" for number, case in enumerate(cases)]


async def refusal(world: World, statement: str) -> str:
    with pytest.raises(ConstraintViolated) as caught, translated():
        await world.run(statement)
    return caught.value.constraint


@pytest.mark.parametrize(("constraint", "table", "row", "change"), CHECKS, ids=_ids(CHECKS))
async def test_a_state_that_may_not_be_is_refused_by_its_check(
    world: World, constraint: str, table: str, row: str, change: str
) -> None:
    update = f"UPDATE {table} SET {change} WHERE {row}"
    assert await refusal(world, update if row else f"INSERT INTO {table} SELECT {change}") == constraint


@pytest.mark.parametrize(("constraint", "statement"), REFUSED, ids=_ids(REFUSED))
async def test_a_change_that_may_not_be_is_refused_by_name(
    world: World, constraint: str, statement: str
) -> None:
    """S4.7, S5.4, S7.12 and the unique keys that make at-least-once effectively-once."""
    assert await refusal(world, statement) == constraint


async def test_every_check_of_the_schema_has_a_case_here(world: World) -> None:
    rows = await world.conn.fetch(
        "SELECT conname FROM pg_constraint WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
    )
    assert {row["conname"] for row in rows} == {constraint for constraint, *_ in CHECKS}


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
async def test_a_schedule_without_a_lateness_limit_may_catch_up_in_any_way(
    world: World, catch_up: str
) -> None:
    """S7.11"""
    await world.run(
        f"UPDATE autopilot_trigger SET catch_up = '{catch_up}', lateness_s = NULL WHERE id = {{cron}}"
    )


@pytest.mark.parametrize(
    ("run", "change", "kinds"),
    [
        ("manual", "status = 'skipped', completed_at = now(), reason_code = 'runtime_offline', failure_reason = 'x'", ["run.done"]),
        ("running", "status = 'failed', completed_at = now(), reason_code = 'task_failed', failure_reason = 'x'", ["run.started", "run.done"]),
        ("running", "last_dispatch_error = 'none of their business'", ["run.started"]),
    ],
)  # fmt: skip
async def test_a_transition_is_told_once(world: World, run: str, change: str, kinds: list[str]) -> None:
    """S2.5"""
    await world.run(f"UPDATE autopilot_run SET {change} WHERE id = {{{run}}}")
    told = await world.conn.fetch(
        "SELECT kind FROM (SELECT kind, run_id, id FROM run_event_outbox UNION ALL SELECT kind, run_id, 0 FROM run_event) e "
        "WHERE run_id = $1 ORDER BY id",
        world.ids[run],
    )
    assert [row["kind"] for row in told] == kinds


async def test_an_id_made_by_an_application_lies_above_the_floor_of_its_time(world: World) -> None:
    around = await world.conn.fetchrow(
        "SELECT uuid7_floor(now() - interval '1 hour') AS below, uuid7_floor(now() + interval '1 hour') AS above"
    )
    assert around is not None
    assert around["below"] < world.ids["rule"] < around["above"]
