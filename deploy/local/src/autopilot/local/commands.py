"""What `python -m autopilot.local` does: run the stack in the foreground or background, stop it, tell its state."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from autopilot.local import settings
from autopilot.local.errors import LocalError
from autopilot.local.processes import Child, FolderLock, end
from autopilot.local.seed import Seed, ensure_seed, read_seed, write_private
from autopilot.local.services import probe
from autopilot.local.stack import Stack

START_TIMEOUT_S = 300.0  # the first start makes the database and migrates it
STOP_TIMEOUT_S = 90.0
WATCH_INTERVAL_S = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_STEPS = """
To use it, in any shell:
  . {env}

A runtime that works for the agent "local" (any program that reads a prompt and prints an answer):
  {autopilot} runtime run --name local --exec 'wc -w'

An autopilot for that agent, and a run of it by hand:
  curl -sS "$AUTOPILOT_API_URL/api/autopilots" -H "Authorization: Bearer $AUTOPILOT_TOKEN" \\
    -H "X-Workspace: $AUTOPILOT_WORKSPACE" -H "Content-Type: application/json" -d '{{"title": "Say hello",
    "description": "Say hello to whoever reads this.", "execution_mode": "create_issue", "assignee_id": "{agent}"}}'
  {autopilot} list
  {autopilot} trigger THE_ID"""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One service replica of a running stack."""

    name: str
    pid: int
    health_port: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack leaves in its folder, as long as it is up, for `start` and `status`."""

    api_url: str
    ingress_url: str
    parts: tuple[Part, ...]


def up(folder: Path) -> int:
    """Run the stack until a signal (0), or until a part of it dies (LocalError)."""
    interrupt_on_signals()
    env, state = folder / "env", folder / "state.json"
    stack = local_stack(folder)
    try:
        with stack:
            try:
                seed = ensure_seed(stack)
                write_private(env, env_file(stack, seed))
                write_private(state, msgspec.json.encode(_state_of(stack)).decode())
                _say(f"Autopilot is up.\n{how_to_use(_state_of(stack), seed, folder)}")
                _watch(stack)
            finally:
                env.unlink(missing_ok=True)
                state.unlink(missing_ok=True)
    except KeyboardInterrupt:
        _say("Stopped.")
    return 0


def start(folder: Path) -> int:
    """Run the stack in the background and return when it is up; a stack that is up already is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if _lock(folder).holder() is not None:
        return status(folder)
    (folder / "state.json").unlink(missing_ok=True)  # of a stack that was killed
    child = Child("stack", [sys.executable, "-m", "autopilot.local", "up", "--folder", str(folder)], folder)
    child.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (folder / "state.json").exists():
        if not child.is_running():
            raise LocalError(child.last_words())
        if time.monotonic() >= deadline:
            child.stop()
            raise LocalError(f"The stack was not up in {START_TIMEOUT_S:.0f} s (log: {child.log}).")
        time.sleep(0.1)
    return status(folder)


def stop(folder: Path) -> int:
    """Stop the stack, wherever it was started, and end what a killed one left behind."""
    holder = _lock(folder).holder() if folder.exists() else None
    if holder is not None:
        end(psutil.Process(holder), signal.SIGTERM, STOP_TIMEOUT_S)
        _say("Stopped.")
    elif folder.exists() and local_stack(folder).end_leftovers():
        _say("Ended what an earlier stack had left running.")
    else:
        _say("The stack is not running.")
    return 0


def destroy(folder: Path) -> int:
    """Stop the stack and remove all its data, logs and tokens."""
    stop(folder)
    if folder.exists():
        local_stack(folder).postgres.destroy()
        shutil.rmtree(folder)
        _say(f"Removed {folder} and its database.")
    return 0


def status(folder: Path) -> int:
    """Tell which parts run and are ready; 0 when all of them are."""
    if not folder.exists() or _lock(folder).holder() is None:
        _say("The stack is not running.")
        return 1
    try:
        state = msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except FileNotFoundError:
        _say("The stack is starting or stopping.")
        return 1
    all_ready = True
    for part in state.parts:
        ready, why = probe(part.health_port)
        all_ready = all_ready and ready
        _say(f"  {part.name:<12} {'ready' if ready else f'not ready: {why}'} (pid {part.pid})")
    _say(how_to_use(state, read_seed(folder / "seed.json"), folder))
    return 0 if all_ready else 1


def local_stack(folder: Path) -> Stack:
    """The stack as the environment asks for it: on our own servers, or on those that it names."""
    return Stack(
        folder,
        ports=settings.ports_from(os.environ),
        database_url=os.environ.get("AUTOPILOT_DATABASE_URL") or None,
        nats_url=os.environ.get("AUTOPILOT_NATS_URL") or None,
        durable=True,
        report=_say,
    )


def env_file(stack: Stack, seed: Seed) -> str:
    """Shell text to be sourced: where the stack is and how to use it."""
    values = {
        "AUTOPILOT_API_URL": stack.api_url,
        "AUTOPILOT_INGRESS_URL": stack.ingress_url,
        "AUTOPILOT_TOKEN": seed.token,
        "AUTOPILOT_WORKSPACE": seed.workspace,
        "AUTOPILOT_RUNTIME_TOKEN": seed.runtime_token,
        "AUTOPILOT_DATABASE_URL": stack.database_url,
        "AUTOPILOT_NATS_URL": stack.nats_url or "",
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _watch(stack: Stack) -> NoReturn:
    while True:
        time.sleep(WATCH_INTERVAL_S)
        if dead := stack.dead():
            raise LocalError(f"{dead}; the rest is stopped.")


def interrupt_on_signals() -> None:
    """From now on every signal that asks this process to end is a KeyboardInterrupt, once."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    for number in SIGNALS:  # one is enough: another one must not break the orderly stop
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _state_of(stack: Stack) -> State:
    parts = tuple(
        Part(name=process.name, pid=process.pid or 0, health_port=process.health_port)
        for process in stack.all_processes()
    )
    return State(api_url=stack.api_url, ingress_url=stack.ingress_url, parts=parts)


def how_to_use(state: State, seed: Seed | None, folder: Path) -> str:
    """Where everything is, and the first commands of somebody who sees this for the first time."""
    lines = [("API", state.api_url), ("webhooks", state.ingress_url), ("logs", str(folder / "log"))]
    if seed is not None:
        # A pipe may end in a file or a build's log: tokens are for eyes only.
        shown = (seed.token, seed.runtime_token) if sys.stdout.isatty() else (f"in {folder / 'env'}",) * 2
        lines += [("workspace", seed.workspace), ("token", shown[0]), ("for runtimes", shown[1])]
    text = "".join(f"  {name:<14}{value}\n" for name, value in lines)
    return text + FIRST_STEPS.format(
        env=folder / "env",
        autopilot=_program("autopilot"),
        agent=seed.agent_id if seed is not None and seed.agent_id else "AN_AGENTS_ID",
    )


def _program(name: str) -> str:
    """How to call a program of this environment from here."""
    path = Path(sys.executable).parent / name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _lock(folder: Path) -> FolderLock:
    return FolderLock(folder, "The stack")


def _say(text: str) -> None:
    print(text, flush=True)
