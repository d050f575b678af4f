"""One command in a process group of its own: fed, listened to, stopped on request, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from autopilot.cli.runtime.printed import Printed
from autopilot.domain.errors import InfrastructureError
from autopilot.kit.clock import SystemClock

KILL_AFTER_S = 10.0
# After the command has ended its pipes are read to their end, unless something it left behind keeps them open.
_DRAIN_S = 2.0
_LOOK_S = 0.05


class StopReason(StrEnum):
    """Why a command was stopped before its own end."""

    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"


class NotStarted(InfrastructureError):
    """The machine could not start the command."""


class Stop:
    """A request to stop; the first reason stays."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self._requested = asyncio.Event()

    def request(self, reason: StopReason) -> None:
        if self.reason is None:
            self.reason = reason
            self._requested.set()

    async def wait(self) -> None:
        await self._requested.wait()


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended; a negative code is the signal. `stopped` says why, if we stopped it."""

    exit_code: int
    stopped: StopReason | None


async def run_command(
    command: str,
    *,
    prompt: str | None,
    environ: Mapping[str, str],
    printed: Printed,
    stop: Stop,
    timeout_s: float,
    kill_after_s: float = KILL_AFTER_S,
    folder: Path | None = None,
) -> Ended:
    """Run it by `sh -c` until it ends, its time is over or `stop` is requested. NotStarted if it cannot run at all.

    It begins in `folder` and reads `prompt` on stdin, or nothing. Stopping is SIGTERM to the whole group, and SIGKILL
    after `kill_after_s` to what is still there. Whatever of the group outlives the command is killed with it.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, child = await loop.subprocess_exec(
            lambda: _Child(printed),
            *("/bin/sh", "-c", command),
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise NotStarted(f"The command could not be started: {error.strerror}.") from error
    group = transport.get_pid()
    try:
        _feed(transport, prompt or "")
        await _first_of([child.exited.wait(), stop.wait()], timeout_s)
        if not child.exited.is_set():
            stop.request(StopReason.TIMEOUT)  # keeps the reason that is there already
            _signal(group, signal.SIGTERM)
            await _first_of([_end_of(group)], kill_after_s)
            _signal(group, signal.SIGKILL)
            await child.exited.wait()
            stopped = stop.reason
        else:
            stopped = None
        await _first_of([child.drained.wait()], _DRAIN_S)
        code = transport.get_returncode()
        assert code is not None, "it has ended"
        return Ended(exit_code=code, stopped=stopped)
    finally:
        _signal(group, signal.SIGKILL)
        try:
            # Also when cancelled, it is waited for before the caller goes on, who may close the loop.
            await _first_of([child.exited.wait()], _DRAIN_S)
        finally:
            transport.close()


class _Child(asyncio.SubprocessProtocol):
    """Takes what the command prints and notes its end."""

    def __init__(self, printed: Printed) -> None:
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._printed = printed
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._printed.take(fd, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()


def _feed(transport: asyncio.SubprocessTransport, prompt: str) -> None:
    """Write the prompt and close stdin behind it; a command that does not read it is its own affair."""
    stdin = transport.get_pipe_transport(0)
    assert isinstance(stdin, asyncio.WriteTransport), "stdin is a pipe"
    stdin.write(prompt.encode(errors="replace"))
    stdin.write_eof()


async def _first_of(waits: Iterable[Coroutine[Any, Any, Any]], timeout_s: float) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _end_of(group: int) -> None:
    """Wait until no process of the group is left, whatever it did with its output."""
    clock = SystemClock()
    while True:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        await clock.sleep(_LOOK_S)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # gone, or (on macOS) only zombies are left
        os.killpg(group, number)
