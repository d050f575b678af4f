"""From webhook, schedule, hand and program to finished issues and tasks, on the real processes (S1, S2, S3, S11)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from tests.support.system import System, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

SECRET = "a secret of sixteen or more"
OPENED = {"action": "opened", "number": 7, "pull_request": {"title": "Mind the gap", "draft": False}}


async def prompt_size(system: System, task_id: str) -> str:
    """What the worker answers to the prompt of this task."""
    [row] = await system.fetch(
        "SELECT octet_length(prompt) AS size FROM agent_task WHERE id = $1", uuid.UUID(task_id)
    )
    return str(row["size"])


async def comments(system: System, issue_id: str) -> list[str]:
    page = await system.ok("GET", f"/api/issues/{issue_id}/comments")
    return [comment["body"].strip() for comment in page["items"]]


async def test_a_signed_webhook_sent_twice_becomes_one_finished_issue(system: System, agent: str) -> None:
    """S3.1, S9.6, S9.7, S10.4, S11.1"""
    autopilot = await system.make_autopilot(
        agent, title="Review it", issue_title_template="Review of {{date}}"
    )
    token = await system.make_webhook(autopilot, signing_secret=SECRET)
    send: dict[str, Any] = {"event": "pull_request", "secret": SECRET, "delivery": str(uuid.uuid4())}
    first = await system.post_webhook(token, OPENED, **send)
    again = await system.post_webhook(token, OPENED, **send)
    assert (first.status, first.body["status"]) == (200, "accepted")
    assert (again.status, again.body["status"]) == (200, "duplicate")
    assert (again.body["delivery_id"], again.body["run_id"]) == (
        first.body["delivery_id"],
        first.body["run_id"],
    )

    run = await system.run_in(autopilot, first.body["run_id"], "completed", "failed", "skipped")
    assert (run["status"], run["source"], run["event"]) == (
        "completed",
        "webhook",
        "github.pull_request.opened",
    )
    assert run["payload"] == OPENED
    issue = await system.ok("GET", f"/api/issues/{run['issue_id']}")
    assert issue["status"] == "in_review"
    assert issue["title"] == f"Review of {run['timeline']['received_at'][:10]}"
    assert "Mind the gap" in issue["body"]
    assert await comments(system, run["issue_id"]) == [await prompt_size(system, run["task_id"])]
    delivery = await system.ok("GET", f"/api/autopilots/{autopilot}/deliveries/{run['delivery_id']}")
    assert (delivery["status"], delivery["attempt_count"]) == ("dispatched", 2)
    times = [
        run["timeline"][f"{name}_at"]
        for name in ("received", "admitted", "dispatched", "claimed", "finished")
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("signed_with", [None, "another secret of that length"])
async def test_a_missing_or_wrong_signature_is_rejected_and_runs_nothing(
    system: System, agent: str, signed_with: str | None
) -> None:
    """S9.6: kept as rejected, and it does not take the dedupe slot from the true delivery."""
    autopilot = await system.make_autopilot(agent)
    token = await system.make_webhook(autopilot, signing_secret=SECRET)
    delivery = str(uuid.uuid4())
    refused = await system.post_webhook(token, OPENED, secret=signed_with, delivery=delivery)
    assert (refused.status, refused.body["status"]) == (401, "rejected")
    assert refused.body["reason_code"] == (
        "missing_signature" if signed_with is None else "invalid_signature"
    )
    assert (
        await system.fetch("SELECT 1 FROM autopilot_run WHERE autopilot_id = $1", uuid.UUID(autopilot)) == []
    )
    true = await system.post_webhook(token, OPENED, secret=SECRET, delivery=delivery)
    assert true.body["status"] == "accepted"


async def test_fifty_equal_deliveries_at_once_make_one_run(system: System, agent: str) -> None:
    """S9.7: the slot is taken in the insert itself."""
    autopilot = await system.make_autopilot(agent)
    token = await system.make_webhook(autopilot)
    delivery = str(uuid.uuid4())
    replies = await asyncio.gather(
        *(system.post_webhook(token, OPENED, delivery=delivery) for _ in range(50))
    )
    assert sorted(reply.body["status"] for reply in replies) == ["accepted"] + ["duplicate"] * 49
    [run_id] = {reply.body["run_id"] for reply in replies}
    assert (await system.run_in(autopilot, run_id, "completed"))["status"] == "completed"


async def test_a_due_schedule_runs_a_bare_task_once(system: System, agent: str) -> None:
    """S3.2, S7.8, S7.9: one run for the occurrence, and the next occurrence is in the future."""
    autopilot = await system.make_autopilot(agent, "run_only")
    trigger_id = await system.make_schedule(autopilot)
    planned = await system.make_due(trigger_id)
    run = await finished_run_of(system, autopilot)
    assert (run["status"], run["source"], run["issue_id"]) == ("completed", "schedule", None)
    assert run["planned_at"] == planned.isoformat().replace("+00:00", "Z")
    assert run["result"].strip() == await prompt_size(system, run["task_id"])
    shown = await system.ok("GET", f"/api/autopilots/{autopilot}")
    assert shown["next_run_at"] > run["planned_at"]
    [execution] = await system.fetch(
        "SELECT state FROM sys_cron_executions WHERE scope_id = $1 AND plan_time = $2", trigger_id, planned
    )
    assert execution["state"] == "SUCCESS"


async def test_a_run_by_hand_answers_with_its_start_and_a_repeated_key_makes_no_second(
    system: System, agent: str
) -> None:
    """S13.1, S13.4, S5.2"""
    autopilot = await system.make_autopilot(agent, "run_only")
    path = f"/api/autopilots/{autopilot}/trigger?wait=10"
    run = await system.ok("POST", path, Idempotency_Key="by hand, once")
    assert run["status"] in ("running", "completed")
    assert (run["source"], run["attribution_source"]) == ("manual", "direct_human")
    again = await system.ok("POST", path, Idempotency_Key="by hand, once")
    assert again["id"] == run["id"]
    await system.run_in(autopilot, run["id"], "completed")
    assert len((await system.ok("GET", f"/api/autopilots/{autopilot}/runs"))["items"]) == 1


async def test_a_program_runs_a_rule_with_a_payload_that_the_agent_sees(system: System, agent: str) -> None:
    """S13.4, S13.6"""
    autopilot = await system.make_autopilot(agent, "run_only")
    body = {"event": "deploy.finished", "payload": {"version": "1.2.3"}}
    run = await system.ok("POST", f"/api/autopilots/{autopilot}/runs?wait=0", body)
    done = await system.run_in(autopilot, run["id"], "completed")
    assert (done["source"], done["originator_id"], done["payload"]) == ("api", None, {"version": "1.2.3"})
    [task] = await system.fetch("SELECT prompt FROM agent_task WHERE run_id = $1", uuid.UUID(run["id"]))
    assert '"version": "1.2.3"' in task["prompt"]


async def test_a_command_that_fails_fails_the_run_with_its_words(system: System) -> None:
    """S11.2, S11.4, S3.2"""
    async with system.working_runtime("breaks", "echo out of coffee >&2; exit 3") as agent:
        for mode in ("run_only", "create_issue"):
            autopilot = await system.make_autopilot(agent, mode)
            run = await system.ok("POST", f"/api/autopilots/{autopilot}/trigger")
            done = await system.run_in(autopilot, run["id"], "failed")
            assert done["reason_code"] == "task_failed"
            assert "out of coffee" in done["failure_reason"]


async def test_an_issue_waits_for_an_offline_runtime_and_a_bare_task_is_skipped_with_its_reason(
    system: System,
) -> None:
    """S3.1, S3.2, S4.3, S2.3"""
    name = f"late-{uuid.uuid4().hex[:6]}"
    agent = await system.make_agent(await system.make_runtime(name, online=False))
    waits = await system.make_autopilot(agent)
    run = await system.ok("POST", f"/api/autopilots/{waits}/trigger?wait=10")
    assert (run["status"], run["task_status"]) == ("issue_created", "queued")

    skips = await system.make_autopilot(agent, "run_only")
    skipped = await system.ok("POST", f"/api/autopilots/{skips}/trigger")
    assert (skipped["status"], skipped["reason_code"]) == ("skipped", "runtime_offline")
    assert skipped["failure_reason"]
    assert skipped["task_id"] is None
    token = await system.make_webhook(skips)
    told = await system.post_webhook(token, OPENED, delivery=str(uuid.uuid4()))
    assert (told.status, told.body["status"], told.body["reason_code"]) == (200, "skipped", "runtime_offline")

    late = system.runtime_process(name)
    late.start()
    try:
        await system.run_in(waits, run["id"], "completed")
    finally:
        await asyncio.to_thread(late.stop)


async def test_what_stands_in_the_way_is_told_before_there_is_a_run(system: System, agent: str) -> None:
    """S4.2, S9.8, S9.9: ignored deliveries with their reason, 409 by hand, and no run for any of them."""
    autopilot = await system.make_autopilot(agent)
    hook = await system.make_trigger(
        autopilot,
        kind="webhook",
        provider="github",
        event_filters=[{"event": "pull_request", "actions": ["opened"]}],
    )

    async def told(**send: Any) -> tuple[int, str, str | None]:
        reply = await system.post_webhook(hook["webhook_token"], {"action": "closed"}, **send)
        return reply.status, reply.body["status"], reply.body.get("reason_code")

    assert await told(event="pull_request") == (200, "ignored", "event_filtered")
    assert await told(event="ping") == (200, "ignored", "provider_ping")
    await system.ok("PATCH", f"/api/autopilots/{autopilot}/triggers/{hook['id']}", {"enabled": False})
    assert await told(event="pull_request") == (200, "ignored", "trigger_disabled")
    await system.ok("PATCH", f"/api/autopilots/{autopilot}", {"status": "paused"})
    by_hand = await system.api("POST", f"/api/autopilots/{autopilot}/trigger")
    assert (by_hand.status, by_hand.body["code"]) == (409, "autopilot_paused")
    await system.ok("DELETE", f"/api/autopilots/{autopilot}")
    by_hand = await system.api("POST", f"/api/autopilots/{autopilot}/trigger")
    assert (by_hand.status, by_hand.body["code"]) == (409, "autopilot_archived")
    assert (await system.ok("GET", f"/api/autopilots/{autopilot}/runs"))["items"] == []


async def test_runs_tell_their_start_and_their_end_once_and_in_order(system: System, agent: str) -> None:
    """S2.5, S12.1"""
    autopilot = await system.make_autopilot(agent, "run_only")
    run = await system.ok("POST", f"/api/autopilots/{autopilot}/trigger")
    await system.run_in(autopilot, run["id"], "completed")

    async def look() -> list[str] | None:
        rows = await system.fetch(
            "SELECT kind FROM run_event WHERE run_id = $1 ORDER BY seq", uuid.UUID(run["id"])
        )
        return [row["kind"] for row in rows] if len(rows) > 1 else None

    assert await eventually(look, "both events") == ["run.started", "run.done"]


async def finished_run_of(system: System, autopilot: str) -> dict[str, Any]:
    """The newest run of a rule, once it has ended."""

    async def look() -> str | None:
        page = await system.ok("GET", f"/api/autopilots/{autopilot}/runs")
        return page["items"][0]["id"] if page["items"] else None

    run_id = await eventually(look, "a run")
    return await system.run_in(autopilot, run_id, "completed", "failed", "skipped")


async def test_an_edit_after_admission_does_not_change_an_accepted_run(system: System, agent: str) -> None:
    """S3.5, S3.7, S5.3: the runbook of the version that was active at admission."""
    autopilot = await system.make_autopilot(agent, "run_only", description="The old runbook.")
    for number in range(5):
        run = await system.ok("POST", f"/api/autopilots/{autopilot}/trigger?wait=0")
        await system.ok("PATCH", f"/api/autopilots/{autopilot}", {"description": f"Runbook {number}."})
        done = await system.run_in(autopilot, run["id"], "completed")
        [task] = await system.fetch("SELECT prompt FROM agent_task WHERE run_id = $1", uuid.UUID(run["id"]))
        assert ("The old runbook." if number == 0 else f"Runbook {number - 1}.") in task["prompt"]
        assert done["rule_version"] == number + 1
