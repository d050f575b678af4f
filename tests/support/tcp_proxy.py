"""A TCP proxy in front of a server, which can be taken away, silenced and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from autopilot.local.ports import free_port


class TcpProxy:
    """Forwards to the server of a URL; `url` is the same through the proxy."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._port = free_port()  # its own while it is down, too
        self._pipes: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._marker: bytes | None = None

    @property
    def url(self) -> str:
        user, _, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{self._port}"))

    async def up(self) -> None:
        """Take connections, on the same port as before."""
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def down(self) -> None:
        """Cut every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

    def silence(self) -> None:
        """Keep every connection and forward nothing, as a network does that lost its way; `resume`, `up` or `down` ends it."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward what waited, and go on."""
        self._flowing.set()

    def lose(self) -> None:
        """Forget every connection without telling either end, as a router does that restarts; new ones work."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def cut_after(self, marker: bytes) -> None:
        """Cut the next connection over which this is sent once the server has done what it says, so that its answer is lost."""
        self._marker = marker

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # taken away while this connection was being accepted
            writer.transport.abort()
            return
        self._pipes.add(task)
        ends = [writer]
        try:
            there, back = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            ends.append(back)
            flowing, doomed = self._flowing, asyncio.Event()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pipe(reader, back, flowing, sees=doomed))
                both.create_task(self._pipe(there, writer, flowing, obeys=doomed))
        except* OSError:
            pass
        except* asyncio.CancelledError:
            pass
        finally:
            self._pipes.discard(task)
            for end in ends:
                end.transport.abort()

    async def _pipe(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        flowing: asyncio.Event,
        *,
        sees: asyncio.Event | None = None,
        obeys: asyncio.Event | None = None,
    ) -> None:
        while data := await source.read(65536):
            await flowing.wait()
            if obeys is not None and obeys.is_set():
                raise ConnectionResetError
            if sees is not None and self._marker is not None and self._marker in data:
                self._marker = None
                sees.set()
            target.write(data)
            await target.drain()
        target.close()


@asynccontextmanager
async def tcp_proxy(url: str) -> AsyncIterator[TcpProxy]:
    """A proxy that is up."""
    proxy = TcpProxy(url)
    await proxy.up()
    try:
        yield proxy
    finally:
        with suppress(asyncio.CancelledError):
            await proxy.down()
