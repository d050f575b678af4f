"""A real pgbouncer in transaction mode in front of one database, where each service has a role with its own timeouts."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest

from autopilot.local.ports import LOOPBACK, free_port
from autopilot.local.privileges import account_for_postgres
from autopilot.local.processes import Child

UNPACKED = Path(__file__).parents[2] / ".tools" / "pgbouncer"
SERVERS_OF_EACH = 2
# What docs/operations.md says: the timeouts that a service sends to Postgres when nothing stands between.
TIMEOUTS = {
    "ingress": {"lock_timeout": "400ms", "statement_timeout": "4s"},
    "dispatcher": {"lock_timeout": "500ms", "statement_timeout": "10s"},
    "scheduler": {"lock_timeout": "500ms", "statement_timeout": "10s"},
    "rules-api": {"lock_timeout": "4s", "statement_timeout": "20s"},
}
OF_ALL = {"timezone": "UTC", "idle_in_transaction_session_timeout": "15s"}


def program() -> tuple[str, dict[str, str]]:
    """pgbouncer and the environment in which it finds its libraries; a test without it is skipped."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(UNPACKED)}
    unpacked = UNPACKED / "pgbouncer"
    if (
        unpacked.exists()
        and subprocess.run([unpacked, "--version"], env=env, capture_output=True).returncode == 0
    ):
        return str(unpacked), env
    if found := shutil.which("pgbouncer"):
        return found, dict(os.environ)
    pytest.skip("there is no pgbouncer: no wheel has it, and Debian's package cannot be had here")


class Pgbouncer(Child):
    """It serves one database under the name of each service, with SERVERS_OF_EACH connections to Postgres for each."""

    def __init__(self, folder: Path, database_url: str, roles: Mapping[str, str], password: str) -> None:
        self.port = free_port()
        server = urlsplit(database_url)
        databases = "\n".join(
            f"{service} = host={server.hostname} port={server.port or 5432} dbname={unquote(server.path[1:])} "
            f"user={role} password={password}"
            for service, role in roles.items()
        )
        settings = {
            "listen_addr": LOOPBACK,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": SERVERS_OF_EACH,
            "max_client_conn": 200,
        }
        if account_for_postgres() is not None:
            settings["user"] = "nobody"  # it refuses to run as root
        lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
        config = folder / "pgbouncer.ini"
        config.write_text(f"[databases]\n{databases}\n\n[pgbouncer]\n{lines}\n")
        path, env = program()
        super().__init__("pgbouncer", [path, str(config)], folder, env=env)

    def url(self, service: str) -> str:
        return f"postgresql://anybody@{LOOPBACK}:{self.port}/{service}"

    def count(self, words: str) -> int:
        """How often its log says so."""
        return self.log.read_text().count(words)

    def crash(self) -> None:
        """Drop all connections at once and start anew."""
        self.send_signal(signal.SIGKILL)
        self.wait(30)
        self.start()


@asynccontextmanager
async def running_pgbouncer(database_url: str) -> AsyncIterator[Pgbouncer]:
    """A pgbouncer with the roles that it needs, which go with it."""
    program()
    tag, password = secrets.token_hex(4), secrets.token_hex(16)
    roles = {service: f"{service.replace('-', '_')}_{tag}" for service in TIMEOUTS}
    conn = await asyncpg.connect(database_url)
    try:
        for service, role in roles.items():
            await conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}' IN ROLE CURRENT_USER")
            for name, value in (OF_ALL | TIMEOUTS[service]).items():
                await conn.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        with tempfile.TemporaryDirectory(prefix="autopilot-pgbouncer-") as folder:
            Path(folder).chmod(0o755)
            pgbouncer = Pgbouncer(Path(folder), database_url, roles, password)
            pgbouncer.start()
            try:
                yield pgbouncer
            finally:
                await asyncio.to_thread(pgbouncer.kill)
    finally:
        for role in roles.values():
            await conn.execute(f"DROP ROLE IF EXISTS {role}")
        await conn.close()
