"""Child processes of the stack: started apart from our terminal, logged to a file, never left behind for good."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from autopilot.local.errors import LocalError

STOP_TIMEOUT_S = 35.0  # a service's grace period is 30 s (S15)


class FolderLock:
    """Marks a folder as owned for as long as this process lives, whatever ends it."""

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / "lock"
        self._what = what
        self._descriptor: int | None = None

    def take(self) -> None:
        """Own the folder; LocalError names the process that does already."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 20).decode()
            os.close(descriptor)
            raise LocalError(f"{self._what} in {self._path.parent} is in use by process {holder}.") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> int | None:
        """The pid of the process that owns the folder now."""
        try:
            file = self._path.open()
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
        return None


class Child:
    """One program whose output goes to `<folder>/<name>.log`.

    It gets a session of its own, so that Ctrl-C in our terminal reaches only us and we stop it in our order. Its pid
    file lets the next start end it when we were killed before we could.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._command = list(command)
        self._env = dict(env) if env is not None else None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._asked_to_end = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_running() else None

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative is the signal. None while it runs or before it started."""
        return None if self._process is None else self._process.poll()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.is_running():
            return
        self.end_leftover()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._asked_to_end = False
        started = psutil.Process(self._process.pid).create_time()
        self._pid_file.write_text(f"{self._process.pid} {started}\n")

    def send_signal(self, number: int) -> None:
        if self._process is not None and self.is_running():
            self._process.send_signal(number)

    def ask_to_end(self) -> None:
        """SIGTERM, once: a service takes a second one for impatience and ends without finishing its work."""
        if not self._asked_to_end:
            self._asked_to_end = True
            self.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired when it lasts longer."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self._forget()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL if it does not end in time."""
        self.ask_to_end()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._forget()

    def end_leftover(self) -> bool:
        """End the process of the pid file, if it is still that process, from before we were killed."""
        found = False
        with contextlib.suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            pid, started = self._pid_file.read_text().split()
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(started)) < 1:
                end(process, signal.SIGTERM)
                found = True
        self._pid_file.unlink(missing_ok=True)
        return found

    def last_words(self) -> str:
        """The last line it wrote since its start, to tell why it ended."""
        lines = self.log.read_bytes()[self._log_start :].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
        self._pid_file.unlink(missing_ok=True)


def end(process: psutil.Process, number: int, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Signal a process that may not be our child, and kill it if it stays."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        if not _ends(process, timeout_s):
            process.kill()
            _ends(process, timeout_s)


def _ends(process: psutil.Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            process.wait(0.05)
            return True
        except psutil.TimeoutExpired:
            if process.status() == psutil.STATUS_ZOMBIE:  # it has ended, but its parent has not looked yet
                return True
    return False
