"""The invariants: silent on a coherent database, and each of them speaks when its rule is broken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.coherent_world import Ids, World, coherent_database, rolled_back

from autopilot.storage import invariants


@pytest.fixture(scope="module")
def coherent(postgres_admin_url: str, postgres_template: str) -> Iterator[tuple[str, Ids]]:
    with coherent_database(postgres_admin_url, postgres_template) as made:
        yield made


@pytest.fixture
async def world(coherent: tuple[str, Ids]) -> AsyncIterator[World]:
    async with rolled_back(*coherent) as world:
        yield world


async def findings(world: World) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in await invariants.check_in(world.conn):
        assert finding.detail
        found.setdefault(finding.invariant, set()).add(finding.subject)
    return found


_TASK = "INSERT INTO agent_task (id, workspace_id, agent_id, issue_id, run_id, prompt, status) VALUES ({extra}, {ws}, {agent}, %s, 'Do.', 'queued')"
_RUN = """INSERT INTO autopilot_run (id, workspace_id, autopilot_id, trigger_id, source, status, execution_mode, rule_version_id, rule_version,
          planned_at, accountable_id, attribution_source) VALUES ({extra}, {ws}, {strict}, {tick}, 'schedule', 'pending', 'run_only', {strict_v1}, 1,
          '2026-01-01 10:02Z', {ann}, 'trigger_owner');
          INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) VALUES ({extra}, {strict}, {tick})"""
_FAIL = "status = 'failed', completed_at = now(), reason_code = 'internal_error', failure_reason = 'x'"

# The query that must speak, whom it must name, and what breaks its rule.
BREAKS = [
    ("pending_has_one_entry", "manual", "DELETE FROM dispatch_queue WHERE run_id = {manual}"),
    ("pending_has_one_entry", "paced", "INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) VALUES ({paced}, {rule}, {hook})"),
    ("undecided_delivery_has_one_entry", "d_undecided", "DELETE FROM dispatch_queue WHERE delivery_id = {d_undecided}"),
    ("entry_has_its_run", "opened", "INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) VALUES ({opened}, {rule}, {cron})"),
    ("entry_has_its_run", "nobody", "INSERT INTO dispatch_queue (run_id, autopilot_id) VALUES ({nobody}, {rule})"),
    ("entry_has_its_run", "manual", "UPDATE dispatch_queue SET autopilot_id = {bare} WHERE run_id = {manual}"),
    ("entry_has_its_run", "paced", "UPDATE dispatch_deferred SET trigger_id = NULL WHERE run_id = {paced}"),
    ("entry_has_its_delivery", "d_ignored", "INSERT INTO dispatch_deferred (kind, delivery_id, autopilot_id, available_at, enqueued_at) VALUES ('retry', {d_ignored}, {rule}, now(), now())"),
    ("entry_has_its_delivery", "nothing", "INSERT INTO dispatch_queue (delivery_id, autopilot_id) VALUES ({nothing}, {rule})"),
    ("entry_has_its_delivery", "d_undecided", "UPDATE dispatch_queue SET trigger_id = {cron} WHERE delivery_id = {d_undecided}"),
    ("delivery_without_run_says_why", "d_lost", "UPDATE webhook_delivery SET reason_code = 'dispatch_exhausted' WHERE id = {d_lost}"),
    ("replay_repeats_its_original", "d_replay", "UPDATE webhook_delivery SET replayed_from = {nothing} WHERE id = {d_replay}"),
    ("replay_repeats_its_original", "d_replay", "UPDATE webhook_delivery SET dedupe_key = 'k2', dedupe_source = 'delivery_id' WHERE id = {d_replay}"),
    ("replay_repeats_its_original", "d_replay", "UPDATE webhook_delivery SET replayed_from = {d_rejected} WHERE id = {d_replay}"),
    ("replay_repeats_its_original", "d_replay", "UPDATE webhook_delivery SET trigger_id = {cron} WHERE id = {d_replay}"),
    ("delivery_agrees_with_its_run", "d_paced", "UPDATE webhook_delivery SET status = 'dispatched' WHERE id = {d_paced}"),
    ("delivery_agrees_with_its_run", "d_hooked", "UPDATE webhook_delivery SET status = 'queued' WHERE id = {d_hooked}"),
    ("delivery_agrees_with_its_run", "d_given_up", "UPDATE webhook_delivery SET status = 'dispatched' WHERE id = {d_given_up}"),
    ("slot_is_held_by_its_delivery", "d_refused", "INSERT INTO webhook_dedupe SELECT {hook}, 'k4', {d_refused}, sha256('x')"),
    ("slot_is_held_by_its_delivery", "d_ignored", "INSERT INTO webhook_dedupe SELECT {hook}, 'k6', {d_ignored}, sha256('x')"),
    ("slot_is_held_by_its_delivery", "d_hooked", "UPDATE webhook_dedupe SET dedupe_key = 'other' WHERE delivery_id = {d_hooked}"),
    ("delivery_holds_its_slot", "d_paced", "DELETE FROM webhook_dedupe WHERE delivery_id = {d_paced}"),
    ("running_has_live_task", "running", "UPDATE agent_task SET status = 'completed', finished_at = now() WHERE id = {t_running}"),
    ("running_has_live_task", "running", "DELETE FROM agent_task WHERE id = {t_running}"),
    ("issue_created_has_open_issue", "opened", "UPDATE issue SET status = 'blocked' WHERE id = {i_opened}"),
    ("issue_created_has_open_issue", "opened", "DELETE FROM issue WHERE id = {i_opened}"),
    ("run_links_agree", "opened", "UPDATE issue SET origin_run_id = {nobody} WHERE id = {i_opened}"),
    ("run_links_agree", "opened", "UPDATE issue SET workspace_id = {ws2} WHERE id = {i_opened}"),
    ("run_links_agree", "running", "UPDATE agent_task SET run_id = {nobody} WHERE id = {t_running}"),
    ("run_links_agree", "opened", "UPDATE agent_task SET issue_id = NULL WHERE id = {t_opened}"),
    ("run_links_agree", "paced", "UPDATE webhook_delivery SET run_id = NULL WHERE id = {d_paced}"),
    ("run_links_agree", "hooked", "DELETE FROM webhook_delivery WHERE id = {d_hooked}"),
    ("run_links_agree", "manual", "UPDATE autopilot_run SET workspace_id = {ws2} WHERE id = {manual}"),
    ("run_links_agree", "opened", "UPDATE autopilot_run SET trigger_id = {tick}, planned_at = '2026-01-01 11:00Z' WHERE id = {opened}"),
    ("run_is_linked_back", "i_hooked", "UPDATE issue SET origin_run_id = {manual} WHERE id = {i_hooked}"),
    ("run_is_linked_back", "extra", _TASK % "NULL, {running}"),
    ("run_is_linked_back", "extra", _TASK % "{i_hooked}, {opened}"),
    ("run_is_linked_back", "d_ignored", "UPDATE webhook_delivery SET status = 'dispatched', run_id = {paced} WHERE id = {d_ignored}"),
    ("bare_task_ends_with_its_run", "t_running", f"UPDATE autopilot_run SET {_FAIL} WHERE id = {{running}}"),
    ("issue_task_ends_with_its_issue", "t_opened", "UPDATE issue SET status = 'cancelled', closed_at = now() WHERE id = {i_opened}"),
    ("overlap_policy_holds", "strict", _RUN),
    ("parked_waits_for_a_live_run", "parked", f"UPDATE autopilot_run SET {_FAIL} WHERE id = {{first}}"),
    ("parked_waits_for_a_live_run", "paced", "UPDATE dispatch_deferred SET kind = 'parked' WHERE run_id = {paced}"),
    ("issue_numbers_dense", "ws", "UPDATE workspace_counter SET last_issue_number = 3 WHERE workspace_id = {ws}"),
    ("issue_numbers_dense", "ws", "DELETE FROM issue WHERE number = 1"),
    ("issue_numbers_dense", "ws", "DELETE FROM workspace_counter WHERE workspace_id = {ws}"),
    ("events_match_runs", "running", "DELETE FROM run_event WHERE run_id = {running}; DELETE FROM run_event_outbox WHERE run_id = {running}"),
    ("events_match_runs", "refused", "INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload) VALUES ({event}, {ws}, {rule}, {refused}, 'run.done', '{{}}')"),
    ("events_match_runs", "hooked", """DELETE FROM run_event WHERE run_id = {hooked}; DELETE FROM run_event_outbox WHERE run_id = {hooked};
        INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
        VALUES (gen_random_uuid(), {ws}, {rule}, {hooked}, 'run.done', '{{}}'), (gen_random_uuid(), {ws}, {rule}, {hooked}, 'run.started', '{{}}')"""),
    ("event_has_its_run", "event", "INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload) VALUES ({event}, {ws}, {rule}, {nobody}, 'run.done', '{{}}')"),
    ("event_seq_dense", "ws", "DELETE FROM run_event WHERE seq = 3"),
    ("event_seq_dense", "ws", "DELETE FROM run_event WHERE seq = 5"),
    ("event_seq_dense", "ws", "DELETE FROM event_head"),
    ("next_run_only_while_live", "cron", "UPDATE autopilot SET status = 'paused' WHERE id = {rule}"),
    ("live_schedule_has_next_run", "cron", "UPDATE autopilot_trigger SET next_run_at = NULL WHERE id = {cron}"),
    ("finished_plan_has_its_run", "e_not_due", "UPDATE sys_cron_executions SET result = '{{}}' WHERE id = {e_not_due}"),
    ("finished_plan_has_its_run", "e_not_due", "UPDATE sys_cron_executions SET result = NULL, scope_id = 'no uuid' WHERE id = {e_not_due}"),
    ("finished_plan_has_its_run", "e_retry", "UPDATE sys_cron_executions SET attempts = 3, next_retry_at = NULL WHERE id = {e_retry}"),
    ("scheduled_run_has_its_plan", "missed", "DELETE FROM sys_cron_executions WHERE id = {e_missed}"),
    ("execution_is_coherent", "e_opened", "UPDATE sys_cron_executions SET finished_at = started_at - interval '1 second' WHERE id = {e_opened}"),
    ("execution_is_coherent", "e_working", "UPDATE sys_cron_executions SET stale_at = heartbeat_at WHERE id = {e_working}"),
    ("execution_is_coherent", "e_opened", "UPDATE sys_cron_executions SET schedule_rev = NULL WHERE id = {e_opened}"),
    ("versions_dense", "rule", "UPDATE autopilot SET version = 3 WHERE id = {rule}"),
    ("versions_dense", "rule", "UPDATE autopilot SET version_id = {rule_v1} WHERE id = {rule}"),
    ("trigger_version_is_its_own", "cron", "UPDATE autopilot_trigger SET published_version_id = {bare_v1} WHERE id = {cron}"),
    ("run_version_is_its_own", "manual", "UPDATE autopilot_run SET rule_version_id = {bare_v1} WHERE id = {manual}"),
    ("run_version_is_its_own", "manual", "UPDATE autopilot_run SET rule_version = 1 WHERE id = {manual}"),
    ("run_version_is_its_own", "manual", "UPDATE autopilot_run SET created_at = now() - interval '1 day' WHERE id = {manual}"),
    ("run_is_accounted_for", "missed", "UPDATE autopilot_run SET accountable_id = NULL, attribution_source = NULL WHERE id = {missed}"),
    ("overdue_queue", "manual", "UPDATE dispatch_queue SET enqueued_at = now() - interval '1 minute' WHERE run_id = {manual}"),
    ("overdue_queue", "manual", "UPDATE dispatch_queue SET enqueued_at = now() - interval '1 hour', lease_token = {lease}, lease_until = now() - interval '1 minute' WHERE run_id = {manual}"),
    ("overdue_deferred", "paced", "UPDATE dispatch_deferred SET available_at = now() - interval '1 minute' WHERE run_id = {paced}"),
    ("overdue_trigger", "tick", "UPDATE autopilot_trigger SET next_run_at = now() - interval '2 minutes' WHERE id = {tick}"),
    ("overdue_execution", "e_retry", "UPDATE sys_cron_executions SET next_retry_at = now() - interval '2 minutes' WHERE id = {e_retry}"),
    ("overdue_execution", "e_working", "UPDATE sys_cron_executions SET heartbeat_at = now() - interval '1 hour', stale_at = now() - interval '2 minutes' WHERE id = {e_working}"),
    ("overdue_task", "t_running", "UPDATE agent_task SET lease_until = now() - interval '2 minutes' WHERE id = {t_running}"),
    ("overdue_task", "t_opened", "UPDATE agent_task SET expires_at = now() - interval '2 minutes' WHERE id = {t_opened}"),
    ("overdue_event", None, "UPDATE run_event_outbox SET occurred_at = now() - interval '1 minute'"),
    ("overdue_event", None, "UPDATE event_head SET relayed_seq = 2; UPDATE run_event SET occurred_at = now() - interval '1 minute'"),
]  # fmt: skip


async def test_an_empty_database_breaks_nothing(postgres_url: str) -> None:
    assert await invariants.check(postgres_url) == []


async def test_a_coherent_database_breaks_nothing(coherent: tuple[str, Ids]) -> None:
    assert await invariants.check(coherent[0]) == []


@pytest.mark.parametrize(
    ("invariant", "subject", "script"), BREAKS, ids=[f"{n}-{b[0]}" for n, b in enumerate(BREAKS)]
)
async def test_a_broken_rule_is_found(world: World, invariant: str, subject: str | None, script: str) -> None:
    await world.run(script)
    found = await findings(world)
    assert found.get(invariant), f"{invariant} is silent; found {found}"
    if subject is not None:
        assert str(world.ids[subject]) in found[invariant]


def test_every_invariant_is_broken_once_here() -> None:
    assert {invariant for invariant, _, _ in BREAKS} == set(invariants.SQL)


# What looks like a break but is allowed by the rules.
ALLOWED = {
    "S3.6 an issue that waits for a person does not count as in flight": """
        UPDATE agent_task SET status = 'completed', finished_at = now() WHERE id = {t_opened};
        UPDATE autopilot SET overlap_policy = 'skip' WHERE id = {rule}""",
    "S7.12 a failed run whose planned time a clean run has taken keeps no plan": """
        UPDATE autopilot_run SET status = 'failed', completed_at = now(), reason_code = 'task_failed', failure_reason = 'x' WHERE id = {first};
        UPDATE agent_task SET status = 'cancelled', finished_at = now() WHERE id = {t_first};
        UPDATE autopilot_run SET planned_at = NULL WHERE id = {first};
        DELETE FROM sys_cron_executions WHERE id = {e_first};
        DELETE FROM dispatch_deferred WHERE run_id = {parked};
        INSERT INTO dispatch_queue (run_id, autopilot_id, trigger_id) VALUES ({parked}, {strict}, {tick})""",
    "S5.2 nobody is accountable where the rule's owner has left": """
        UPDATE autopilot_run SET accountable_id = NULL, attribution_source = NULL WHERE id = {missed};
        DELETE FROM member WHERE user_id = {ann}""",
    "S7.17 the oldest events go": "DELETE FROM run_event WHERE seq = 1; DELETE FROM autopilot_run WHERE id = {missed}; "
    "DELETE FROM sys_cron_executions WHERE id = {e_missed}",
    "S7.9 a trigger whose failed plan is retried later is not overdue": """
        UPDATE autopilot_trigger SET next_run_at = now() - interval '5 minutes' WHERE id = {cron}""",
    "S11.6 a task whose runtime was asked to let go may live on for a while": """
        UPDATE agent_task SET cancel_requested_at = now() WHERE id = {t_opened};
        UPDATE autopilot_run SET status = 'failed', completed_at = now(), reason_code = 'issue_cancelled', failure_reason = 'x' WHERE id = {opened};
        UPDATE issue SET status = 'cancelled', closed_at = now() WHERE id = {i_opened}""",
}


@pytest.mark.parametrize("script", ALLOWED.values(), ids=list(ALLOWED))
async def test_what_is_allowed_is_not_found(world: World, script: str) -> None:
    await world.run(script)
    assert await findings(world) == {}


async def test_liveness_only_warns(world: World) -> None:
    await world.run("UPDATE dispatch_queue SET enqueued_at = now() - interval '1 hour'")
    found = await invariants.check_in(world.conn)
    assert found
    assert not any(finding.fatal for finding in found)


async def test_a_query_reports_at_most_twenty_rows(world: World) -> None:
    await world.run(
        "INSERT INTO dispatch_queue (run_id, autopilot_id) SELECT gen_random_uuid(), {rule} FROM generate_series(1, 50)"
    )
    assert len(await invariants.check_in(world.conn)) == 20
