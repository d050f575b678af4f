"""`autopilot runtime run` as a process, against an API that loses answers, takes leases away and goes (S11.3, S11.4)."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.cli import RUNTIME_TOKEN, FakeRuntimeApi, autopilot, environment, problem, runtime_process
from tests.support.processes import disappears


@pytest.fixture
async def api() -> AsyncIterator[FakeRuntimeApi]:
    fake = FakeRuntimeApi()
    await fake.start()
    yield fake
    await fake.stop()


async def appears(path: Path) -> str:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)
    return path.read_text()


def patient(folder: Path) -> str:
    """Says that it runs, then waits; on SIGTERM it says so and ends with 0."""
    return (
        f'trap "echo > {folder}/termed; exit 0" TERM; echo > {folder}/started; while :; do sleep 0.05; done'
    )


async def test_a_task_is_claimed_started_executed_and_completed(api: FakeRuntimeApi) -> None:
    """S11.4: the prompt on stdin, facts in the environment, stdout as result; none of our secrets, nor the machine's."""
    task = await api.give(
        prompt="Do « this ».", issue_id=str(uuid4()), issue_key="AUT-7", agent_name="Ada L."
    )
    env = environment(
        api.base, AUTOPILOT_DATABASE_URL="postgresql://u:p@h/d", HOME="/home/someone", CLOUD_KEY="k"
    )
    async with runtime_process(api.base, "cat; echo; env | sort", env=env):
        outcome = await api.outcome(task)
    assert outcome["action"] == "complete"
    assert outcome["lease_token"] == task["lease_token"]
    prompt, _, facts = outcome["result"].partition("\n")
    assert prompt == "Do « this »."
    told = dict(line.split("=", 1) for line in facts.splitlines())
    ours = {name: value for name, value in told.items() if name.startswith("AUTOPILOT_")}
    assert ours == {
        "AUTOPILOT_API_URL": api.base,
        "AUTOPILOT_TASK_ID": task["id"],
        "AUTOPILOT_RUN_ID": task["run_id"],
        "AUTOPILOT_ISSUE_ID": task["issue_id"],
        "AUTOPILOT_ISSUE_KEY": "AUT-7",
        "AUTOPILOT_AUTOPILOT_ID": task["autopilot_id"],
        "AUTOPILOT_WORKSPACE_ID": task["workspace_id"],
        "AUTOPILOT_AGENT": "Ada L.",
        "AUTOPILOT_AGENT_ID": task["agent_id"],
        "AUTOPILOT_SOURCE": "manual",
        "AUTOPILOT_ATTEMPT": "1",
        "AUTOPILOT_MAX_ATTEMPTS": "3",
        "AUTOPILOT_TIMEOUT_S": "3600",
        "AUTOPILOT_RUNTIME_DIR": str(Path.cwd()),
    }
    assert told["HOME"] == "/home/someone"
    assert "CLOUD_KEY" not in told
    assert RUNTIME_TOKEN not in outcome["result"]
    (start,) = api.of("/start")
    assert start.body == {"lease_token": task["lease_token"]}
    (register,) = api.of("/register")
    assert (register.body["name"], register.body["concurrency"]) == ("box", 1)
    assert set(register.body["capabilities"]) == {"os", "arch"}
    assert register.headers["Authorization"] == f"Bearer {RUNTIME_TOKEN}"


async def test_a_failing_command_fails_its_task_with_the_end_of_stderr(api: FakeRuntimeApi) -> None:
    task = await api.give()
    async with runtime_process(api.base, "echo thinking; echo 'no such file' >&2; exit 4"):
        outcome = await api.outcome(task)
    assert (outcome["action"], outcome["kind"]) == ("fail", "agent")
    assert outcome["error"] == "The command ended with exit code 4.\nno such file"


async def test_a_task_that_takes_too_long_fails_as_a_timeout(api: FakeRuntimeApi) -> None:
    task = await api.give(timeout_s=3)
    async with runtime_process(api.base, "echo half >&2; sleep 300"):
        outcome = await api.outcome(task)
    assert (outcome["action"], outcome["kind"]) == ("fail", "timeout")
    assert outcome["error"] == "The command was stopped: it ran longer than 3 s.\nhalf"


async def test_two_mebibytes_of_output_become_a_result_that_fits(api: FakeRuntimeApi) -> None:
    task = await api.give()
    async with runtime_process(api.base, "yes 0123456789abcde | head -c 2097152; echo the end"):
        outcome = await api.outcome(task)
    assert outcome["action"] == "complete"
    assert len(outcome["result"].encode()) <= 64 * 1024
    assert outcome["result"].endswith("the end")


async def test_one_task_after_the_other_is_executed_with_one_place(api: FakeRuntimeApi) -> None:
    tasks = [await api.give(prompt=f"task {number}") for number in range(3)]
    async with runtime_process(api.base, "cat"):
        outcomes = [await api.outcome(task) for task in tasks]
    assert [outcome["result"] for outcome in outcomes] == ["task 0", "task 1", "task 2"]
    assert all(call.body["limit"] == 1 for call in api.of("/claim"))


async def test_two_places_execute_two_tasks_at_once_and_renew_them_in_one_call(api: FakeRuntimeApi) -> None:
    """S11.7."""
    first, second = await api.give(prompt="a"), await api.give(prompt="b")
    async with runtime_process(api.base, "sleep 300", "--concurrency", "2"):
        both = {first["id"], second["id"]}
        await api.until(
            lambda: any({t["id"] for t in call.body["tasks"]} == both for call in api.of("/renew"))
        )
        await api.until(lambda: len(api.of("/start")) == 2)  # a renewal may overtake it
    assert api.of("/claim")[0].body["limit"] == 2


async def test_renewals_tell_the_latest_line(api: FakeRuntimeApi) -> None:
    await api.give()
    async with runtime_process(api.base, "echo reading; echo 'half done' >&2; sleep 300"):
        await api.until(lambda: any(c.body["tasks"][0]["progress"] == "half done" for c in api.of("/renew")))


async def test_an_answer_to_complete_that_is_lost_is_asked_for_again(api: FakeRuntimeApi) -> None:
    """S11.3: completing twice is once; the task is not run again."""
    api.lose("/complete", times=2)
    task, other = await api.give(prompt="first"), await api.give(prompt="second")
    async with runtime_process(api.base, "cat"):
        await api.outcome(other)
    first = [call.body for call in api.of("/complete") if call.path.split("/")[-2] == task["id"]]
    assert first == [{"lease_token": task["lease_token"], "result": "first"}] * 3
    assert len(api.of("/start")) == 2


async def test_a_claim_whose_answer_is_lost_is_repeated_and_its_task_runs_once(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    api.lose("/claim")
    task = await api.give()
    async with runtime_process(api.base, f"echo x >> {tmp_path}/runs"):
        await api.outcome(task)
        await api.until(lambda: len(api.of("/claim")) >= 3)
    ids = [call.body["claim_id"] for call in api.of("/claim")[:3]]
    assert ids[0] == ids[1] != ids[2]
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_start_that_is_refused_runs_nothing(api: FakeRuntimeApi, tmp_path: Path) -> None:
    lost, other = await api.give(prompt="lost"), await api.give(prompt="other")
    api.states[lost["lease_token"]] = "lost"
    async with runtime_process(api.base, f"cat >> {tmp_path}/runs"):
        await api.outcome(other)
    assert (tmp_path / "runs").read_text() == "other"
    assert lost["id"] not in api.outcomes


@pytest.mark.parametrize("state", ["lost", "cancelled"])
async def test_a_task_that_is_lost_or_cancelled_is_stopped_and_reported_to_nobody(
    api: FakeRuntimeApi, tmp_path: Path, state: str
) -> None:
    task = await api.give()
    async with runtime_process(api.base, patient(tmp_path)):
        await appears(tmp_path / "started")
        api.states[task["lease_token"]] = state
        await appears(tmp_path / "termed")
        await api.until(lambda: len(api.of("/claim")) >= 2)  # its place is free again
    assert not api.of("/complete")
    assert not api.of("/fail")


async def test_a_command_that_ignores_sigterm_is_killed_ten_seconds_later(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.7."""
    task = await api.give()
    command = f'trap "" TERM; echo > {tmp_path}/started; while :; do sleep 300; done'
    async with runtime_process(api.base, command):
        await appears(tmp_path / "started")
        api.states[task["lease_token"]] = "cancelled"
        began = time.monotonic()
        await api.until(lambda: len(api.of("/claim")) >= 2)
        assert 9.5 < time.monotonic() - began < 25


async def test_while_the_api_is_away_the_command_runs_on_and_is_reported_when_it_is_back(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    task = await api.give()
    command = f"echo > {tmp_path}/started; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo > {tmp_path}/ended"
    async with runtime_process(api.base, command) as process:
        await appears(tmp_path / "started")
        await api.stop()
        (tmp_path / "go").write_text("")
        await appears(tmp_path / "ended")
        await asyncio.sleep(1)  # long enough for several refused connections
        assert process.returncode is None
        await api.start()
        assert (await api.outcome(task))["action"] == "complete"
        await api.until(lambda: len(api.of("/claim")) >= 2)


async def test_a_task_that_comes_back_under_a_new_lease_is_not_executed_twice_at_once(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """We lost it without noticing and were given it again: the first command ends before the second begins."""
    lines = tmp_path / "lines"
    command = (
        f'trap "sleep 0.3; echo end >> {lines}; exit 0" TERM; echo begin >> {lines};'
        f' [ "$AUTOPILOT_ATTEMPT" = 2 ] || while :; do sleep 0.05; done'
    )
    task = await api.give()
    async with runtime_process(api.base, command, "--concurrency", "2"):
        await appears(lines)
        again = await api.give(id=task["id"], attempt=2)
        outcome = await api.outcome(again)
    assert lines.read_text() == "begin\nend\nbegin\n"
    assert outcome["lease_token"] == again["lease_token"]


async def test_a_runtime_that_the_server_forgot_registers_again(api: FakeRuntimeApi) -> None:
    api.refuse("/heartbeat", problem(404, "not_found", "No such runtime."))
    async with runtime_process(api.base, "cat"):
        await api.until(lambda: len(api.of("/register")) == 2)
        task = await api.give()
        await api.outcome(task)


async def test_a_result_that_the_api_refuses_fails_the_task_instead_of_holding_it(
    api: FakeRuntimeApi,
) -> None:
    api.refuse("/complete", problem(422, "invalid_value", "Too strange.", field="result"))
    task = await api.give()
    async with runtime_process(api.base, "echo strange"):
        outcome = await api.outcome(task)
    assert (outcome["action"], outcome["kind"]) == ("fail", "agent")
    assert "The result was refused." in outcome["error"]


async def test_sigterm_ends_the_commands_gives_the_tasks_back_and_exits_with_zero(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.4, S15: nothing is claimed any more; the failure says that it was the machine's."""
    task = await api.give()
    async with runtime_process(api.base, patient(tmp_path)) as process:
        await appears(tmp_path / "started")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    assert (tmp_path / "termed").exists()
    outcome = api.outcomes[task["id"]]
    assert (outcome["action"], outcome["kind"]) == ("fail", "runtime_lost")
    assert api.calls[-1].path == "/api/runtime/bye"
    assert len(api.of("/claim")) == 1


async def test_sigterm_in_a_long_poll_ends_at_once(api: FakeRuntimeApi) -> None:
    api.numbers["poll_s"] = 55
    async with runtime_process(api.base, "cat") as process:
        await api.until(lambda: bool(api.of("/claim")))
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_sigterm_while_the_api_is_away_ends_too(api: FakeRuntimeApi) -> None:
    await api.stop()
    async with runtime_process(api.base, "cat") as process:
        assert process.stderr is not None
        line = json.loads(await process.stderr.readline())
        assert line["event"] == "runtime_waits_for_api"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_a_second_signal_kills_the_commands_and_exits_at_once(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    await api.give()
    command = f'trap "" TERM; echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; sleep 300; sleep 300'
    async with runtime_process(api.base, command) as process:
        pid = int(await appears(tmp_path / "pid"))
        process.send_signal(signal.SIGTERM)
        await wait_for_event(process, "runtime_stopping")
        process.send_signal(signal.SIGTERM)
        # With 0 it would have ended by itself, once it had killed the command after its 10 s.
        assert await asyncio.wait_for(process.wait(), 30) == 128 + signal.SIGTERM
    await disappears(pid)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_token_that_is_refused_ends_the_runtime_with_one_line(
    api: FakeRuntimeApi, status: int
) -> None:
    api.refuse("/register", problem(status, "wrong_token_kind", "This is not a runtime's token."))
    async with runtime_process(api.base, "cat") as process:
        assert process.stderr is not None
        told = (await process.stderr.read()).decode()
        assert await process.wait() == 1
    assert told.splitlines()[-1].startswith(
        f"Error: The runtime is not taken. Title of {status}: This is not a"
    )
    assert RUNTIME_TOKEN not in told


async def test_neither_prompt_nor_output_nor_token_is_logged(api: FakeRuntimeApi) -> None:
    """S9.12: a payload may be in the prompt."""
    task = await api.give(prompt="a private prompt")
    async with runtime_process(api.base, "cat; echo 'a private thought' >&2") as process:
        await api.outcome(task)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        told = (await process.stderr.read()).decode()
    events = [json.loads(line)["event"] for line in told.splitlines()]
    assert "task_reported" in events
    assert "private" not in told
    assert RUNTIME_TOKEN not in told
    assert task["lease_token"] not in told


@pytest.mark.parametrize(
    "arguments",
    [("--exec", " "), ("--exec", "cat", "--name", " "), ("--exec", "cat", "--concurrency", "0"), ()],
)
async def test_wrong_usage_calls_nobody(api: FakeRuntimeApi, arguments: tuple[str, ...]) -> None:
    assert (await autopilot(api.base, "runtime", "run", *arguments)).code == 2
    assert not api.calls


async def wait_for_event(process: asyncio.subprocess.Process, event: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while text := await process.stderr.readline():
            if json.loads(text)["event"] == event:
                return
    raise AssertionError(f"it ended without {event}")
