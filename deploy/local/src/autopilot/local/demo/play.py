"""`python -m autopilot.local demo`: a stack of its own from nothing, a runtime, three runs, and nothing left behind."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autopilot.local.commands import interrupt_on_signals
from autopilot.local.demo.report import Report, say
from autopilot.local.demo.scenes import Scenes
from autopilot.local.errors import LocalError
from autopilot.local.processes import Child, FolderLock
from autopilot.local.rest import Rest
from autopilot.local.seed import Seed, ensure_seed
from autopilot.local.stack import Stack

RUNTIME_TIMEOUT_S = 20.0
INTRODUCTION = """\
Autopilot demo: all of this is real and runs on this machine, apart from any stack that is up. Postgres, NATS and
the four services start as processes, and a runtime executes a command for each task.
"""


def demo(folder: Path) -> int:
    """Play everything; 0 only if every check holds. The data are removed unless one does not."""
    interrupt_on_signals()
    began = time.monotonic()
    place = folder / "demo"
    report = Report()
    say(INTRODUCTION)
    _take_over(place)
    try:
        with Stack(place, report=say) as stack:
            seed = ensure_seed(stack)
            with _runtime(stack, seed):
                _play(stack, seed, report)
            report.check("every invariant of the database holds", _invariants(stack), "all invariants hold")
            report.check("no process has died", stack.dead(), None)
    except KeyboardInterrupt:
        say("\nStopped.")
        _remove(place)
        return 130
    if not report.finish(time.monotonic() - began):
        say(f"What the services said is in {place / 'log'}.")
        return 1
    _remove(place)
    return 0


def _play(stack: Stack, seed: Seed, report: Report) -> None:
    rest = Rest(url=stack.api_url, token=seed.token, workspace=seed.workspace)
    scenes = Scenes(rest, stack.ingress_url, seed.agent_id, report)
    try:
        every_minute = scenes.every_minute()
        scenes.webhook()
        scenes.by_hand()
        scenes.scheduled(every_minute)
    except LocalError as error:
        report.check("every call is answered as it should be", error.message, None)


def _take_over(place: Path) -> None:
    """Remove what an earlier demo has left, unless it still plays."""
    holder = FolderLock(place, "A demo").holder()
    if holder is not None:
        raise LocalError(f"A demo is running already (process {holder}).")
    _remove(place)


def _remove(place: Path) -> None:
    if place.exists():
        stack = Stack(place)
        stack.end_leftovers()
        stack.postgres.destroy()
        shutil.rmtree(place)


@contextmanager
def _runtime(stack: Stack, seed: Seed) -> Iterator[None]:
    """`autopilot runtime run` as a process, ready to work."""
    agent = shlex.join([sys.executable, "-m", "autopilot.local.demo.agent"])
    command = ["runtime", "run", "--name", "local", "--exec", agent]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AUTOPILOT_")}
    env |= {"AUTOPILOT_API_URL": stack.api_url, "AUTOPILOT_RUNTIME_TOKEN": seed.runtime_token}
    child = Child("runtime", [sys.executable, "-m", "autopilot.cli", *command], stack.logs, env=env)
    child.start()
    try:
        _wait_online(Rest(url=stack.api_url, token=seed.token, workspace=seed.workspace), child)
        say("runtime is ready")
        yield
    finally:
        child.stop()


def _wait_online(rest: Rest, child: Child) -> None:
    deadline = time.monotonic() + RUNTIME_TIMEOUT_S
    while all(runtime["state"] != "online" for runtime in rest.get("/api/runtimes")["items"]):
        if not child.is_running() or time.monotonic() > deadline:
            raise LocalError(f"The runtime did not begin to work: {child.last_words()}")
        time.sleep(0.1)


def _invariants(stack: Stack) -> str:
    """What the checker says on its last line."""
    try:
        return stack.run_module("autopilot.storage", "check").strip().splitlines()[-1]
    except LocalError as error:
        return error.message
