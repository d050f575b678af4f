"""Fresh, migrated databases for tests: one server a session, one clone of a template a test.

The server is that of AUTOPILOT_TEST_DATABASE_URL (an administrator's URL) or an embedded one, which the session
starts when the first test asks and ends when it is over, shared by all xdist workers. The template is named after
the migrations' content, so that a long-lived server migrates once for each state of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

import autopilot.storage
from autopilot.local.postgres import PostgresServer

ADMIN_VARIABLE = "AUTOPILOT_TEST_DATABASE_URL"
TEMPLATE_VARIABLE = (
    "AUTOPILOT_TEST_TEMPLATE"  # a migrated database of that server, of a newer release perhaps
)
SESSION_VARIABLE = "AUTOPILOT_TEST_SESSION_FOLDER"
PREFIX = "autopilot-tests-"
MEMORY = Path("/dev/shm")
TEST_SETTINGS = {"max_wal_size": "256MB", "min_wal_size": "64MB"}
ROOM_BYTES = 2 << 30  # what a session's databases and log may need in memory
TEMPLATE_LOCK = 7_205_759  # an advisory lock: workers build the template one after the other


class ServerSession:
    """What the session's controlling process holds: the folder in which any worker may start the one server."""

    def __init__(self) -> None:
        sweep_dead_sessions()
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=_roots()[0]))
        made.chmod(0o711)
        self._owner = (made / "owner").open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        # Seen by others only once it is locked, or a session that begins at the same moment would take it for a dead one.
        self.folder = made.rename(made.with_name(made.name.removeprefix(".")))
        os.environ[SESSION_VARIABLE] = str(self.folder)

    def close(self) -> None:
        """End the server, if a test ever asked for it, and remove its data."""
        _remove_session(self.folder)
        self._owner.close()


def sweep_dead_sessions() -> None:
    """End servers whose session was killed: their owner file is no longer locked."""
    for folder in (folder for root in _roots() for folder in root.glob(f"{PREFIX}*")):
        try:
            owner = (folder / "owner").open()
        except (FileNotFoundError, PermissionError):
            continue
        with owner:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove_session(folder)


def _roots() -> list[Path]:
    """Where a session's data may lie, best first: cloning 500 files takes 35 ms in memory, a disk may take a second."""
    disk = Path(tempfile.gettempdir())
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        return [MEMORY, disk]
    return [disk, MEMORY]


def _remove_session(folder: Path) -> None:
    PostgresServer(folder / "postgres").destroy()
    shutil.rmtree(folder, ignore_errors=True)


def admin_url() -> str:
    """The administrator's URL of the session's server, started by whoever asks first."""
    if given := os.environ.get(ADMIN_VARIABLE):
        return given
    folder = Path(os.environ[SESSION_VARIABLE])
    with _locked(folder / "start.lock"):
        note = folder / "url"
        if not note.exists():
            server = PostgresServer(folder / "postgres", durable=False, settings=TEST_SETTINGS)
            server.start()
            server.leave_running()
            note.write_text(server.url)
        return note.read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def migrations_fingerprint() -> str:
    """A short hash over every migration file, so that a changed migration makes a new template."""
    digest = hashlib.sha256()
    for root in autopilot.storage.__path__:
        for path in sorted(Path(root).glob("migrations/**/*")):
            if path.suffix in {".py", ".sql"}:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


async def ensure_template(admin: str) -> str:
    """The name of a migrated database to clone from, migrated now if this server has none of this state."""
    if given := os.environ.get(TEMPLATE_VARIABLE):
        return given
    name = f"autopilot_template_{migrations_fingerprint()}"
    connection = await asyncpg.connect(admin)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", TEMPLATE_LOCK)
        if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate", name):
            return name
        # Loading it takes seconds, which whoever finds the template is spared.
        from autopilot.storage.migrate import upgrade

        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{name}"')
        await upgrade(with_database(admin, name))
        # Marked last: a template that is only half migrated is never taken for a whole one.
        await connection.execute(f'ALTER DATABASE "{name}" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false')
        return name
    finally:
        await connection.close()


@asynccontextmanager
async def cloned_database(admin: str, template: str | None) -> AsyncIterator[str]:
    """A database of one test's own, cloned from `template` (None: an empty one), dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    source = f'TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""
    await _run(admin, f'CREATE DATABASE "{name}" {source}')
    try:
        yield with_database(admin, name)
    finally:
        await _run(admin, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _run(admin: str, statement: str) -> None:
    connection = await asyncpg.connect(admin)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
