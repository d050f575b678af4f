"""ingress on a thread of its own, and requests written to its socket byte by byte."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from tests.support import postgres
from tests.support.ingress import running_ingress
from tests.support.rules import make_autopilot, make_setting, make_webhook_trigger

from autopilot.ingress.receive import PATH
from autopilot.storage.database import Database

T = TypeVar("T")
PATIENCE_S = 20.0


class Reply(msgspec.Struct, frozen=True):
    """What came back, decoded where it is JSON; None for a connection that was closed without an answer."""

    status: int | None
    body: Any = None


class Wire(msgspec.Struct, frozen=True):
    """A webhook of provider github without a secret, and what its ingress keeps."""

    port: int
    path: str
    database: Database
    loop: asyncio.AbstractEventLoop

    def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that belongs to the loop of ingress."""
        return asyncio.run_coroutine_threadsafe(question, self.loop).result(60)

    def post(self, framing: Sequence[str | bytes], *pieces: bytes, hang_up: bool = False) -> Reply:
        """Send a POST with these header lines and then each piece; TimeoutError when no answer comes."""
        lines = [f"POST {self.path} HTTP/1.1", "Host: ingress", "Connection: close", *framing, "", ""]
        head = b"\r\n".join(line.encode() if isinstance(line, str) else line for line in lines)
        return self.exchange(head, *pieces, hang_up=hang_up)

    def exchange(self, *pieces: bytes, hang_up: bool = False) -> Reply:
        """Write these bytes as they are, hang up or not, and read one answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    sock.sendall(piece)
                if hang_up:
                    sock.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has heard enough; what it said is still to be read
            return _reply(sock)


def _reply(sock: socket.socket) -> Reply:
    answer = http.client.HTTPResponse(sock, method="POST")
    try:
        answer.begin()
        raw = answer.read()
    except (http.client.HTTPException, ConnectionResetError):
        return Reply(None)
    is_json = "json" in (answer.getheader("Content-Type") or "")
    return Reply(answer.status, msgspec.json.decode(raw) if is_json else raw)


@contextmanager
def wired(admin_url: str, template: str) -> Iterator[Wire]:
    """A Wire over a database of its own."""
    ready: Future[Wire] = Future()
    thread = threading.Thread(target=_run, args=(admin_url, template, ready), name="wire", daemon=True)
    thread.start()
    wire = ready.result(60)
    try:
        yield wire
    finally:
        wire.loop.call_soon_threadsafe(_stop_of(wire.loop))
        thread.join(20)


_stops: dict[int, asyncio.Event] = {}


def _stop_of(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    return _stops[id(loop)].set


def _run(admin_url: str, template: str, ready: Future[Wire]) -> None:
    try:
        asyncio.run(_serve(admin_url, template, ready))
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(admin_url: str, template: str, ready: Future[Wire]) -> None:
    loop = asyncio.get_running_loop()
    stop = _stops[id(loop)] = asyncio.Event()
    async with (
        postgres.cloned_database(admin_url, template) as url,
        Database(url, name="test") as database,
        running_ingress(url) as ingress,
    ):
        setting = await make_setting(database)
        autopilot = await make_autopilot(database, setting)
        hook = await make_webhook_trigger(
            database, setting, autopilot.id, provider="github", pace_per_min=6000
        )
        port = urlsplit(ingress.base).port
        assert port is not None
        ready.set_result(Wire(port, PATH + hook.token, database, loop))
        await stop.wait()
