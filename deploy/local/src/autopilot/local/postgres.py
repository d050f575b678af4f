"""A real Postgres on loopback, from the wheel's programs or those of AUTOPILOT_PG_BIN."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil

from autopilot.local.errors import LocalError
from autopilot.local.pg_programs import PgPrograms, pg_programs
from autopilot.local.ports import LOOPBACK, free_port, require_free
from autopilot.local.privileges import Account, account_for_postgres, can_enter
from autopilot.local.processes import FolderLock, end
from autopilot.local.shelter import make_shelter, shelter_for

SUPERUSER = "postgres"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
STILL_IN_USE = "still in use"  # orphans of a killed postmaster need a moment to notice and go
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# Survives the death of any process, not that of the machine: right for tests, and several times quicker.
THROWAWAY = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum_naptime": "15s",
}


class PostgresServer:
    """One server with its data in `folder`, owned by one process at a time.

    `port` 0 takes a free one at the first start and keeps it over restarts. With a `password` every connection
    needs it; without one, whoever reaches the loopback port is trusted. A server left behind by a process that
    was killed is ended before a new one starts on its data.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        port_variable: str = "another port",
        durable: bool = True,
        password: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.port = port
        self._port_variable = port_variable
        self._password = password
        self._settings = SETTINGS | ({} if durable else THROWAWAY) | dict(settings or {})
        self._account: Account | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = FolderLock(self.folder, "The Postgres data")

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def data(self) -> Path:
        """Where the data lies: in the folder, unless the account that runs Postgres cannot get there."""
        if self._account is not None and not can_enter(self.folder.parent):
            return shelter_for(self.folder) / "data"
        return self.folder / "data"

    @property
    def _marker(self) -> Path:
        return self.folder / "where"

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def database_url(self, database: str) -> str:
        secret = f":{quote(self._password, safe='')}" if self._password else ""
        return f"postgresql://{SUPERUSER}{secret}@{LOOPBACK}:{self.port}/{database}"

    def start(self) -> None:
        """Start and wait until it takes connections; LocalError says in one sentence why it does not."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            self._start()
        except BaseException:
            self.stop(immediate=True)
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.end_leftover()
        if self._account is not None:
            self.folder.chmod(self.folder.stat().st_mode | 0o011)
        programs = pg_programs(self._account)
        self._remove_orphaned_data()
        self._refuse_other_version(programs)
        if self.port:
            require_free(self.port, "Postgres", self._port_variable)
        else:
            self.port = free_port()
        if not (self.data / "PG_VERSION").exists():
            self._initdb(programs)
        self._launch(programs)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop it, letting go of open sessions. `immediate` is a crash: the next start recovers from the log."""
        if self._child is not None:
            if self.pid is not None:
                number = signal.SIGQUIT if immediate else signal.SIGINT
                end(psutil.Process(self._child.pid), number, STOP_TIMEOUT_S)
            self._child.wait()
            self._child = None
        else:
            self.end_leftover()
        self._lock.release()

    def leave_running(self) -> None:
        """Give up ownership without stopping it: whoever calls `destroy` or `start` on the folder next ends it."""
        if self._child is not None:
            self._child.returncode = 0  # a Popen that is dropped unfinished would warn
            self._child = None
        self._lock.release()

    def destroy(self) -> None:
        """Stop it and remove its data."""
        self._account = account_for_postgres()
        home = self.data.parent
        self.stop(immediate=True)
        for place in {home, self.folder}:
            shutil.rmtree(place, ignore_errors=True)

    def end_leftover(self) -> bool:
        """End a server that still runs on this data although nobody owns it any more; whether there was one."""
        self._account = account_for_postgres()
        lines = _read_pid_file(self.data)
        if not lines or not lines[0].isdigit():
            return False
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(lines[0]))
            if process.name().startswith("postgres") and Path(process.cwd()) == self.data.resolve():
                end(process, signal.SIGINT, STOP_TIMEOUT_S)
                return True
        return False

    def _remove_orphaned_data(self) -> None:
        """Data elsewhere whose folder has been removed since are nobody's: their password is gone too."""
        if self.data.parent != self.folder and not self._marker.exists():
            shutil.rmtree(self.data, ignore_errors=True)

    def _refuse_other_version(self, programs: PgPrograms) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = (self.data / "PG_VERSION").read_text().strip()
            if found != str(programs.major):
                raise LocalError(
                    f"The data in {self.data} belong to Postgres {found}, but this is Postgres {programs.major}: "
                    "move that folder away or set AUTOPILOT_PG_BIN to the programs of the older version."
                )

    def _initdb(self, programs: PgPrograms) -> None:
        data = self.data
        if data.exists():
            if any(data.iterdir()):
                raise LocalError(f"{data} is not empty but holds no Postgres data: move it away.")
        else:
            if data.parent != self.folder:
                make_shelter(data.parent)
            data.mkdir(mode=0o700)
        command = [str(programs.initdb), "-D", str(data), "-U", SUPERUSER, "-E", "UTF8", "--no-sync"]
        command += ["--locale", "C.UTF-8" if sys.platform == "linux" else "C", "--no-instructions"]
        password_file = data.with_name("initial-password")
        if self._password is None:
            command += ["--auth", "trust"]
        else:
            password_file.touch(mode=0o600)
            password_file.write_text(self._password)
            command += ["--auth", "scram-sha-256", "--pwfile", str(password_file)]
        if self._account is not None:
            os.chown(data, self._account.uid, self._account.gid)
            if self._password is not None:
                os.chown(password_file, self._account.uid, self._account.gid)
        try:
            made = subprocess.run(
                command, cwd=data, env=_environment(), text=True, capture_output=True, check=False,
                user=self._uid, group=self._gid, extra_groups=self._groups,
            )  # fmt: skip
        finally:
            password_file.unlink(missing_ok=True)
        if made.returncode != 0:
            shutil.rmtree(data, ignore_errors=True)
            raise LocalError(f"Postgres could not make its data folder: {_last_line(made.stderr)}")
        self._marker.write_text(f"The data are in {data}\n")

    def _launch(self, programs: PgPrograms) -> None:
        command = [str(programs.postgres), "-D", str(self.data), "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(
                    command, cwd=self.data, env=_environment(), start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    user=self._uid, group=self._gid, extra_groups=self._groups,
                )  # fmt: skip
            if self._becomes_ready(deadline):
                return
            said = self.log.read_bytes()[log_start:].decode(errors="replace")
            timed_out = time.monotonic() >= deadline
            if timed_out or STILL_IN_USE not in said:
                why = "was not ready in time" if timed_out else f"ended at once: {_last_line(said)}"
                raise LocalError(f"Postgres {why} (log: {self.log})")
            time.sleep(0.2)

    def _becomes_ready(self, deadline: float) -> bool:
        child = self._child
        assert child is not None
        while child.poll() is None and time.monotonic() < deadline:
            lines = _read_pid_file(self.data)
            if len(lines) > 7 and lines[0] == str(child.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        return False

    @property
    def _uid(self) -> int | None:
        return None if self._account is None else self._account.uid

    @property
    def _gid(self) -> int | None:
        return None if self._account is None else self._account.gid

    @property
    def _groups(self) -> list[int] | None:
        return None if self._account is None else []


def _environment() -> dict[str, str]:
    """The caller's environment without what would change the meaning of the programs' own arguments."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _read_pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return []


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "HINT:" not in line]
    faults = [line for line in lines if "FATAL:" in line or "PANIC:" in line or "error:" in line]
    return (faults or lines or ["it said nothing"])[-1].strip()
