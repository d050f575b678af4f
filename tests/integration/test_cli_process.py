"""Real commands in a process group of their own: fed, stopped, killed, and never left behind (S11.4, S11.7)."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest
from tests.support.processes import disappears

from autopilot.cli.runtime.printed import OUTPUT_LIMIT, RESULT_LIMIT, Printed
from autopilot.cli.runtime.process import Ended, NotStarted, Stop, StopReason, run_command

ENVIRON = {"PATH": os.environ["PATH"]}


async def run(
    command: str,
    *,
    prompt: str = "",
    stop: Stop | None = None,
    timeout_s: float = 20,
    kill_after_s: float = 10,
    environ: dict[str, str] | None = None,
) -> tuple[Ended, Printed]:
    printed = Printed()
    ended = await run_command(
        command,
        prompt=prompt,
        environ=ENVIRON | (environ or {}),
        printed=printed,
        stop=stop or Stop(),
        timeout_s=timeout_s,
        kill_after_s=kill_after_s,
    )
    return ended, printed


async def appears(path: Path) -> str:
    """What a command wrote (and moved there whole) to say how far it is."""
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_a_command_gets_the_prompt_and_gives_its_output() -> None:
    ended, printed = await run("cat; echo oops >&2; exit 3", prompt="Répondez.\n")
    assert ended == Ended(exit_code=3, stopped=None)
    assert printed.result() == "Répondez."
    assert printed.error("Headline") == "Headline\noops"


async def test_a_command_that_does_not_read_a_large_prompt_ends_all_the_same() -> None:
    ended, printed = await run("echo done", prompt="x" * 2_000_000)
    assert (ended.exit_code, printed.result()) == (0, "done")


async def test_a_large_prompt_and_a_large_output_at_the_same_time_do_not_block_each_other() -> None:
    ended, printed = await run("cat", prompt="x" * 2_000_000)
    assert ended.exit_code == 0
    assert printed.stdout.total == 2_000_000


async def test_two_mebibytes_of_output_are_read_and_cut() -> None:
    """S11.7: output 1 MiB, result 64 KiB."""
    ended, printed = await run("yes 0123456789abcde | head -c 2097152; echo the end")
    assert ended.exit_code == 0
    assert printed.stdout.total == 2 * OUTPUT_LIMIT + len("the end\n")
    assert len(printed.stdout.end(10**9)) == OUTPUT_LIMIT
    result = printed.result()
    assert len(result.encode()) <= RESULT_LIMIT
    assert result.startswith(f"[The first part of {printed.stdout.total} bytes of output is cut.]\n")
    assert result.endswith("\nthe end")


async def test_sigterm_lets_a_command_end_in_its_own_way(tmp_path: Path) -> None:
    stop, ready = Stop(), tmp_path / "ready"
    running = asyncio.create_task(
        run(
            'trap "echo tidy; exit 0" TERM; echo > $READY; while :; do sleep 0.05; done',
            stop=stop,
            environ={"READY": str(ready)},
        )
    )
    await appears(ready)
    stop.request(StopReason.SHUTDOWN)
    ended, printed = await running
    assert ended == Ended(exit_code=0, stopped=StopReason.SHUTDOWN)
    assert printed.result() == "tidy"


async def test_a_command_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    stop, ready = Stop(), tmp_path / "ready"
    began = time.monotonic()
    running = asyncio.create_task(
        run(
            'trap "" TERM; sleep 300 & echo $! > $READY.part; mv $READY.part $READY; wait; while :; do sleep 300; done',
            stop=stop,
            kill_after_s=0.3,
            environ={"READY": str(ready)},
        )
    )
    child = int(await appears(ready))
    stop.request(StopReason.CANCELLED)
    ended, _ = await running
    assert ended == Ended(exit_code=-9, stopped=StopReason.CANCELLED)
    assert time.monotonic() - began < 10
    await disappears(child)


async def test_a_child_of_the_shell_has_its_time_to_tidy_up_too(tmp_path: Path) -> None:
    """The shell dies of SIGTERM at once; what it started is not killed before its 10 s are over."""
    stop, ready, tidy = Stop(), tmp_path / "ready", tmp_path / "tidy"
    inner = tmp_path / "agent.sh"
    inner.write_text(
        f'trap "sleep 0.4; echo > {tidy}; exit 0" TERM; echo > {ready}; while :; do sleep 0.05; done'
    )
    running = asyncio.create_task(run(f"sh {inner}; echo never", stop=stop))
    await appears(ready)
    stop.request(StopReason.LOST)
    ended, printed = await running
    assert ended.stopped is StopReason.LOST
    assert tidy.exists()
    assert "never" not in printed.result()


async def test_a_command_that_takes_too_long_is_stopped() -> None:
    ended, _ = await run("sleep 300", timeout_s=0.2)
    assert ended == Ended(exit_code=-15, stopped=StopReason.TIMEOUT)


async def test_the_first_reason_to_stop_is_the_one_that_is_told() -> None:
    stop = Stop()
    stop.request(StopReason.LOST)
    stop.request(StopReason.SHUTDOWN)
    ended, _ = await run("sleep 300", stop=stop)
    assert ended.stopped is StopReason.LOST


async def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    """Also when it holds the pipes open: the command has ended when its shell has."""
    note = tmp_path / "pid"
    began = time.monotonic()
    ended, printed = await run(f"sleep 300 & echo $! > {note}; echo done")
    assert (ended.exit_code, printed.result()) == (0, "done")
    assert time.monotonic() - began < 8
    await disappears(int(note.read_text()))


async def test_a_cancelled_wait_leaves_no_process(tmp_path: Path) -> None:
    """Nor a zombie: it has been waited for by the time the caller goes on, whose loop may end there."""
    ready = tmp_path / "ready"
    running = asyncio.create_task(
        run(
            'trap "" TERM; echo $$ > $READY.part; mv $READY.part $READY; sleep 300',
            environ={"READY": str(ready)},
        )
    )
    child = int(await appears(ready))
    running.cancel()
    await asyncio.wait([running])
    assert not psutil.pid_exists(child)


async def test_an_unknown_program_fails_as_the_shell_says() -> None:
    ended, printed = await run("no-such-program-here")
    assert ended.exit_code == 127
    assert "not found" in printed.error("x")


async def test_a_machine_that_cannot_start_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_args: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio.get_running_loop(), "subprocess_exec", refuse)
    with pytest.raises(NotStarted, match="Resource temporarily unavailable"):
        await run("true")
