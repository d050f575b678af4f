"""What commands do to the runtime that runs them, and what it does to them (S11.4, S11.7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import RUNTIME_TOKEN, FakeRuntimeApi

from autopilot.cli.client import ApiClient
from autopilot.cli.config import Connection
from autopilot.cli.runtime.execution import Command
from autopilot.cli.runtime.folder import Keep
from autopilot.cli.runtime.protocol import RuntimeApi
from autopilot.cli.runtime.worker import Options, Worker
from autopilot.kit.config import Secret


@pytest.fixture
async def api() -> AsyncIterator[FakeRuntimeApi]:
    fake = FakeRuntimeApi()
    await fake.start()
    yield fake
    await fake.stop()


@asynccontextmanager
async def working(
    api: FakeRuntimeApi, line: str, *, check: str | None = None, **command: Any
) -> AsyncIterator[None]:
    """A runtime in this process that runs `line` for each task, ended in order when the block is left."""
    stopping = asyncio.Event()
    connection = Connection(api_url=api.base, token=Secret(RUNTIME_TOKEN), workspace=None)
    options = Options(command=Command(line=line, environ=os.environ, **command), name="box", check=check)
    async with ApiClient(connection) as client:
        work = asyncio.create_task(Worker(RuntimeApi(client), options).run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await work


async def appears(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)


MARK = os.getpid()  # what tells the commands of these tests from those of another run of them

HOSTILE = {
    # Output of four times the limit that is kept, and no end of it in sight until it is told to end.
    "floods": ("yes 0123456789abcde | head -c 4194304; echo the end", "the end", ""),
    "closes stdin": ("exec <&-; echo closed", "closed", ""),
    "reads nothing": ("sleep 0.1; echo done", "done", ""),
    "prints no text": ("printf 'a\\000b\\377\\376c'", "ab\ufffd\ufffdc", ""),
    "prints nothing": ("true", "", ""),
    # A child that holds the output and one that does not: neither keeps the task, and neither outlives it.
    "leaves children": (
        f"sleep 301.{MARK} & (exec >/dev/null 2>&1; sleep 302.{MARK}) & echo left",
        "left",
        rf"sleep 30[12]\.{MARK}",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_command_that_behaves_badly_is_a_task_like_any_other(api: FakeRuntimeApi, kind: str) -> None:
    """S11.4, S11.7: with a prompt larger than any pipe; the runtime goes on with the next task."""
    command, end, children = HOSTILE[kind]
    task = await api.give(prompt="p" * 1_000_000)
    async with working(api, command):
        outcome = await api.outcome(task)
        assert outcome["action"] == "complete"
        assert outcome["result"].endswith(end)
        assert len(outcome["result"].encode()) <= 64 * 1024
        assert (await api.outcome(await api.give()))["action"] == "complete"
    if children:
        await none_like(children)


async def test_what_a_stopped_command_has_started_is_ended_too_and_killed_if_need_be(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.7: SIGTERM reaches the whole group, whoever clears up has 10 s for it, and who will not is killed."""
    tidy = f"(trap 'sleep 0.5; echo > {tmp_path}/tidied; exit' TERM; exec >/dev/null 2>&1; while :; do sleep 0.05; done) &"
    task = await api.give()
    async with working(api, f"{tidy} echo > {tmp_path}/started; sleep 303.{MARK}"):
        await appears(tmp_path / "started")
        api.states[task["lease_token"]] = "cancelled"
        await api.until(lambda: len(api.of("/claim")) >= 2)
    assert (tmp_path / "tidied").exists()
    await none_like(rf"sleep 303\.{MARK}")


async def test_a_task_has_a_folder_of_its_own_that_stays_if_asked_for(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.4: kept where the task failed, gone where it was completed."""
    command = 'pwd; echo x > made; [ "$AUTOPILOT_ATTEMPT" = 1 ]'
    done, failed = await api.give(), await api.give(attempt=2)
    async with working(api, command, work_dir=tmp_path / "tasks", keep=Keep.FAILED):
        where = Path((await api.outcome(done))["result"])
        assert (await api.outcome(failed))["action"] == "fail"
        await api.until(lambda: len(api.of("/claim")) >= 3)
    assert where.parent.parent == tmp_path / "tasks"
    assert not where.parent.exists()
    (kept,) = (tmp_path / "tasks").iterdir()
    assert kept.name.startswith(f"{failed['id']}.2.")
    assert (kept / "work" / "made").read_text() == "x\n"


async def test_the_prompt_comes_as_a_file_where_the_command_asks_for_one(api: FakeRuntimeApi) -> None:
    task = await api.give(prompt="Do « this ».\n" + "x" * 300_000)
    async with working(api, "head -c 14 {prompt_file}; wc -c < {prompt_file}; cat | wc -c"):
        outcome = await api.outcome(task)
    assert outcome["result"].split() == ["Do", "«", "this", "».300015", "0"]


async def test_the_runtimes_own_limit_ends_a_command(api: FakeRuntimeApi) -> None:
    task = await api.give(timeout_s=3600)
    async with working(api, "sleep 300", timeout_s=0.3):
        outcome = await api.outcome(task)
    assert (outcome["action"], outcome["kind"]) == ("fail", "timeout")
    assert outcome["error"] == "The command was stopped: it ran longer than 0.3 s."


async def test_output_is_told_while_the_command_runs_and_to_its_end(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.7: at best; an answer that is lost is asked for again, and the outcome does not wait for it."""
    api.lose("/output")
    task = await api.give()
    command = f"echo first; echo second >&2; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo third"
    async with working(api, command):
        await api.until(lambda: api.outputs.get(task["id"], {}).get(0) == "first\nsecond\n")
        (tmp_path / "go").write_text("")
        await api.outcome(task)
    assert api.outputs[task["id"]] == {0: "first\nsecond\n", 13: "third\n"}
    ended = [call.path.rsplit("/", 1)[1] for call in api.calls]
    assert ended.index("complete") > len(ended) - ended[::-1].index("output") - 1


async def test_a_command_that_talks_is_stopped_before_the_next_renewal(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S11.3: what it says is refused once a person has cancelled it."""
    api.numbers["renew_s"] = 3600
    task = await api.give()
    async with working(api, f"echo > {tmp_path}/started; while :; do echo busy; sleep 0.05; done"):
        await appears(tmp_path / "started")
        api.states[task["lease_token"]] = "cancelled"
        await api.until(lambda: len(api.of("/claim")) >= 2)
    assert not api.of("/fail")


async def test_no_task_is_taken_while_the_agent_program_cannot_run(
    api: FakeRuntimeApi, tmp_path: Path
) -> None:
    """S4.3: the machine answers, its agent program cannot run; people see why."""
    check = f"[ -e {tmp_path}/agent ] || {{ echo 'no agent here' >&2; exit 127; }}"
    await api.give()
    async with working(api, "cat", check=check):
        await api.until(lambda: any("usable" in call.body for call in api.of("/heartbeat")))
        said = next(call.body for call in api.of("/heartbeat") if "usable" in call.body)
        assert said["usable"] is False
        assert said["detail"] == "The check ended with exit code 127.\nno agent here"
        assert "--check" in said["repair_hint"]
    assert not api.of("/claim")
    (tmp_path / "agent").write_text("")
    async with working(api, "cat", check=check):
        await api.until(lambda: bool(api.outcomes))


async def none_like(pattern: str) -> None:
    """Wait until there is no such command: one that was killed may have to wait for a processor to end on."""
    async with asyncio.timeout(20):
        while commands_like(pattern):
            await asyncio.sleep(0.01)


def commands_like(pattern: str) -> list[str]:
    """The command lines of live processes that this pattern finds."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if re.fullmatch(pattern, line):
                found.append(line)
    return found
