"""The command against the real API, from trigger to finished run, with real commands as agents (S11.4, S14)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.support import rules
from tests.support.api import Api
from tests.support.cli import Ran, autopilot, environment, runtime_process
from tests.support.dispatching import assert_coherent, drain, fetch, worker
from tests.support.work import Shop, Started, make_shop

from autopilot.domain.permissions import Role, TokenKind
from autopilot.domain.states import ExecutionMode

ISSUE = ExecutionMode.CREATE_ISSUE


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def owner_env(shop: Shop) -> dict[str, str]:
    token = await shop.api.token(TokenKind.PERSONAL, shop.place.owner_id)
    return environment(shop.api.base, AUTOPILOT_TOKEN=token, AUTOPILOT_WORKSPACE=shop.place.slug)


async def runtime_env(shop: Shop) -> dict[str, str]:
    token = await shop.api.token(TokenKind.RUNTIME, shop.place.owner_id, shop.place.id)
    return environment(shop.api.base, AUTOPILOT_RUNTIME_TOKEN=token)


async def as_owner(shop: Shop, *arguments: str) -> Ran:
    return await autopilot(shop.api.base, *arguments, env=await owner_env(shop))


async def becomes(shop: Shop, started: Started, status: str) -> dict[str, object]:
    """The run once it has that status."""
    async with asyncio.timeout(30):
        while (run := dict(await shop.run(started.run_id)))["status"] != status:
            assert run["status"] not in ("completed", "failed"), run["failure_reason"]
            await asyncio.sleep(0.02)
    return run


async def appears(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_a_run_is_triggered_executed_and_shown(shop: Shop) -> None:
    """From `trigger` to `runs`: an issue's task is done by `cat`, and its result is the agent's comment."""
    rule = await shop.rule(ISSUE, title="Nightly triage", description="Look at everything.")
    triggered = await as_owner(shop, "trigger", str(rule), "--wait", "0", "--output", "json")
    assert (triggered.code, triggered.err) == (0, "")
    run_id = json.loads(triggered.out)["id"]
    await drain(worker(shop.database))
    async with runtime_process(
        shop.api.base, "cat; env | grep ^AUTOPILOT_RUN_ID", env=await runtime_env(shop)
    ):
        async with asyncio.timeout(30):
            while (await fetch(shop.database, "SELECT status FROM autopilot_run"))[0][0] != "completed":
                await asyncio.sleep(0.02)
    comments = await fetch(shop.database, "SELECT body FROM issue_comment")
    assert "Look at everything." in comments[0][0]
    assert comments[0][0].endswith(f"AUTOPILOT_RUN_ID={run_id}")
    runs = await as_owner(shop, "runs", str(rule)[:13])
    assert runs.code == 0, runs.err
    header, line = runs.out.splitlines()
    assert header.split() == ["ID", "STATUS", "SOURCE", "CREATED", "TOOK", "ISSUE", "REASON"]
    assert line.split()[1:3] == ["completed", "manual"]
    assert "AUT-1" in line
    listed = await as_owner(shop, "list")
    assert "Nightly triage  active  create_issue  -         -         " in listed.out
    assert listed.out.rstrip().endswith("completed")
    await assert_coherent(shop.database)


async def test_a_failed_command_is_the_reason_that_runs_shows(shop: Shop) -> None:
    started = await shop.start()
    async with runtime_process(shop.api.base, "echo 'disk is full' >&2; exit 9", env=await runtime_env(shop)):
        await becomes(shop, started, "failed")
    runs = await as_owner(shop, "runs", str(started.autopilot_id))
    assert "task_failed: The command ended with exit code 9. disk is full" in runs.out
    await assert_coherent(shop.database)


async def test_a_huge_output_is_accepted_by_the_api(shop: Shop) -> None:
    started = await shop.start()
    command = "yes 'é\\0' | head -c 2097152; printf '\\377the end'"
    async with runtime_process(shop.api.base, command, env=await runtime_env(shop)):
        run = await becomes(shop, started, "completed")
    assert str(run["result"]).startswith("[The first part of ")
    assert str(run["result"]).endswith("\ufffdthe end")


async def test_a_task_that_a_person_cancels_is_stopped(shop: Shop, tmp_path: Path) -> None:
    """S11.6, S11.7: the next renewal, at most 10 s later, tells the runtime."""
    started = await shop.start()
    command = f'trap "echo > {tmp_path}/termed; exit 0" TERM; echo > {tmp_path}/started; while :; do sleep 0.05; done'
    async with runtime_process(shop.api.base, command, env=await runtime_env(shop)):
        await appears(tmp_path / "started")
        assert (await shop.owner("POST", f"/api/tasks/{started.task_id}/cancel")).status == 200
        await appears(tmp_path / "termed")
    run = await shop.run(started.run_id)
    assert (run["status"], run["reason_code"]) == ("failed", "task_cancelled")


async def test_a_runtime_that_is_stopped_gives_an_issues_task_back(shop: Shop, tmp_path: Path) -> None:
    """S11.2: the machine's failure is retried, and the next runtime finishes it."""
    started = await shop.start(ISSUE)
    async with runtime_process(
        shop.api.base, f"echo > {tmp_path}/started; sleep 300", env=await runtime_env(shop)
    ) as process:
        await appears(tmp_path / "started")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    task = await shop.task(started.task_id)
    assert (task["status"], task["lease_token"]) == ("queued", None)
    assert (await shop.run(started.run_id))["status"] == "issue_created"
    await assert_coherent(shop.database)


async def test_a_paused_rule_is_refused_in_one_line(shop: Shop) -> None:
    rule = await shop.rule()
    await shop.owner("PATCH", f"/api/autopilots/{rule}", {"status": "paused"})
    ran = await as_owner(shop, "trigger", str(rule))
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "autopilot_paused" in ran.err


async def test_a_skipped_run_is_exit_code_one_with_its_reason(shop: Shop) -> None:
    """AT1: run_only on a machine that is away."""
    rule = await shop.rule()
    await rules.set_runtime(shop.database, shop.setting.runtime_id, seen_s_ago=600)
    ran = await as_owner(shop, "trigger", str(rule), "--output", "json")
    assert (ran.code, json.loads(ran.out)["status"]) == (1, "skipped")
    assert ran.err.startswith("Error: The run is skipped: runtime_offline: ")


async def test_the_same_key_is_the_same_run(shop: Shop) -> None:
    rule = await shop.rule()
    first = await as_owner(
        shop, "trigger", str(rule), "--idempotency-key", "k", "--output", "json", "--wait", "0"
    )
    second = await as_owner(
        shop, "trigger", str(rule), "--idempotency-key", "k", "--output", "json", "--wait", "0"
    )
    assert json.loads(first.out)["id"] == json.loads(second.out)["id"]


async def test_get_hides_a_real_webhooks_token_and_shows_it_only_to_a_writer_who_asks(shop: Shop) -> None:
    """S6.5."""
    rule = await shop.rule()
    hook = await rules.make_webhook_trigger(shop.database, shop.setting, rule)
    shown = await as_owner(shop, "get", str(rule))
    assert shown.code == 0
    assert hook.token not in shown.out
    (trigger,) = json.loads(shown.out)["triggers"]
    assert (trigger["has_webhook_token"], trigger["webhook_token_hint"]) == (True, hook.token[-4:])
    assert (await as_owner(shop, "get", str(rule), "--output", "table")).code == 0
    secret = await as_owner(shop, "get", str(rule), "--show-secrets")
    assert json.loads(secret.out)["triggers"][0]["webhook_token"] == hook.token
    reader_id, _ = await shop.api.joined(shop.place, "mia", Role.MEMBER)
    token = await shop.api.token(TokenKind.PERSONAL, reader_id)
    env = environment(shop.api.base, AUTOPILOT_TOKEN=token, AUTOPILOT_WORKSPACE=shop.place.slug)
    read = await autopilot(shop.api.base, "get", str(rule), "--show-secrets", env=env)
    assert json.loads(read.out)["triggers"][0]["webhook_token"] is None
    assert hook.token not in read.out


async def test_a_service_token_may_look_but_not_trigger(shop: Shop) -> None:
    """S13.6."""
    rule = await shop.rule()
    token = await shop.api.token(TokenKind.SERVICE, shop.place.owner_id, shop.place.id)
    env = environment(shop.api.base, AUTOPILOT_TOKEN=token)
    assert (await autopilot(shop.api.base, "list", env=env)).code == 0
    refused = await autopilot(shop.api.base, "trigger", str(rule), env=env)
    assert (refused.code, refused.out) == (1, "")
    assert "wrong_token_kind" in refused.err


async def test_a_personal_token_is_no_runtimes_token(shop: Shop) -> None:
    token = await shop.api.token(TokenKind.PERSONAL, shop.place.owner_id)
    env = environment(shop.api.base, AUTOPILOT_RUNTIME_TOKEN=token)
    async with runtime_process(shop.api.base, "cat", env=env) as process:
        assert await asyncio.wait_for(process.wait(), 30) == 1
