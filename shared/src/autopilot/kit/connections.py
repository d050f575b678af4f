"""Connections of a server: each thing a peer may do takes a bounded time, and there is a bounded number of them (S9.2, S9.16)."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from autopilot.kit import log, metrics
from autopilot.kit.http import MAX_HEADER_BYTES, Problem, headers_too_large, problem_of, problem_response
from autopilot.kit.ids import uuid7

# A head that is still incomplete: the request line and the headers may have 16 KiB each, and then it is enough.
_MAX_HEAD_BYTES = 2 * MAX_HEADER_BYTES
_MAX_HEADERS = 128
_SPARE_FILES = 128
_WAITED_S = 1.0

_logger = log.get_logger()
_closed = metrics.counter(
    "http_connections_closed_total", "Connections ended by the server's limits", ["why"]
)


Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that a connection may take for each thing, and how many connections there may be.

    `head_s` runs from the first byte of a request (of a new connection: from its start) to the end of its headers,
    `body_s` from there to the end of its body, `stall_s` while the peer does not take what is written to it,
    `idle_s` between two requests: longer than the 60 s after which proxies usually close, so that they close first.
    """

    head_s: float = 15.0
    body_s: float = 30.0
    stall_s: float = 30.0
    idle_s: float = 75.0
    look_every_s: float = 1.0
    connections: int = 4096


class Connection(web.RequestHandler):
    """A connection that is looked at by its server, and that never repeats what a broken request said."""

    __slots__ = (
        "_head_bytes",
        "_incoming",
        "_pipe",
        "_server",
        "_stalled_since",
        "_unfinished_since",
        "_was_paused",
        "said_all",
        "since",
    )

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._server = server
        self._incoming: StreamReader = EMPTY_PAYLOAD
        self._head_bytes = 0
        self._stalled_since: float | None = None
        self._was_paused = False
        self.said_all = False
        # aiohttp's parser holds back what follows so many requests, and is asked for it where as many wait. But one of
        # those that it counts may have been taken before its body was there, and would never be among the waiting.
        self._max_msg_queue_size -= 1

    @property
    def waits(self) -> bool:
        """Whether no request of it is being answered."""
        waiter = self._waiter
        return not self.has_asked or (waiter is not None and not waiter.done())

    @property
    def has_asked(self) -> bool:
        return self._request_count > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast("asyncio.Transport", transport)
        self.since = self._loop.time()
        self._unfinished_since: float | None = self.since
        super().connection_made(transport)
        if not self._server.take(self):
            self._refuse(Problem(503, "unavailable", "There are too many connections.", retry_after_s=2))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()
        super().pause_writing()

    def pause_reading(self) -> None:
        self._was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp asks for this with each piece of a body that is taken; where nothing has paused it would parse nothing, again.

        Once something has, the parser may hold bytes that no flag here tells of: a pause for the number of chunks stops
        it only at the next piece of a body, when reading may long go on.
        """
        if self._was_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def eof_received(self) -> Any:
        """Who has said all and half-closes still gets the answer; in the middle of a request it ends the connection."""
        if self.waits or not self._incoming.is_eof():
            return None
        self.said_all = True
        self.close()
        return True

    def data_received(self, data: bytes) -> None:
        if self._close or self._force_close:
            return
        before, incoming = self._request_count, self._incoming
        in_body = not incoming.is_eof()
        super().data_received(data)
        if self._request_count != before and self._messages:
            if in_body and not incoming.is_eof():
                self._break_off(incoming)
                return
            self._incoming = self._messages[-1][1]
            self._head_bytes = 0
            self.since = self._loop.time()
            self._unfinished_since = None if self._incoming.is_eof() else self.since
        elif in_body:
            if incoming.is_eof():
                self._unfinished_since = None
        elif data:
            self._note_head(len(data))

    def look(self, now: float) -> str | None:
        """End the connection if what it is at takes too long; why, if so."""
        limits = self._server.limits
        if self._stalled_since is not None:
            if now - self._stalled_since > limits.stall_s:
                return self.abort("stalled")
        elif self._pipe.is_closing():
            # What was still to be written when it was closed is waited for; a peer may never take it.
            self._stalled_since = now
        elif self._unfinished_since is None:
            return None
        elif not self._incoming.is_eof():
            if now - self._unfinished_since > limits.body_s:
                return self.abort("slow_body")
        elif self.waits and now - self._unfinished_since > limits.head_s:
            return self.abort("slow_head" if self._head_bytes or self.has_asked else "silent")
        return None

    def abort(self, why: str) -> str:
        """End it whatever is still to be written; why."""
        self.force_close()
        self._pipe.abort()
        return why

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if resp.status >= 400 and isinstance(resp, web.HTTPException):
            resp = problem_response(problem_of(resp), str(uuid7()))
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the request line, which may hold a token
    ) -> web.StreamResponse:
        _logger.info("http_request_broken", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        if status >= 500:
            problem = Problem(status, "internal_error", "Something went wrong here.")
        elif isinstance(exc, LineTooLong):
            problem = headers_too_large("The request line or a header is larger than 16 KiB.")
        elif "Too many headers" in str(exc):
            problem = headers_too_large(f"There are more than {_MAX_HEADERS} headers.")
        else:
            problem = Problem(status, "bad_request", "This is not an HTTP request that can be read.")
        response = problem_response(problem, str(uuid7()))
        response.force_close()
        return response

    def _note_head(self, size: int) -> None:
        if self._unfinished_since is None:
            self._unfinished_since = self._loop.time()
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES and self.waits:
            _closed.labels("large_head").inc()
            self._refuse(headers_too_large())

    def _break_off(self, body: StreamReader) -> None:
        """A body that stops being HTTP in its middle: its reader is told at once, and the connection ends with the answer."""
        _logger.info("http_request_broken", status=400, error="body")
        body.set_exception(web.RequestPayloadError("the body cannot be read"))
        self.close()

    def _refuse(self, problem: Problem) -> None:
        if self.transport is not None:
            self.transport.write(_as_bytes(problem))
        self.force_close()


def has_hung_up(request: web.BaseRequest) -> bool:
    """Whether nobody may be there any more to take an answer: whoever has gone looks like one who has only said all."""
    transport, protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        return True
    return isinstance(protocol, Connection) and protocol.said_all


class Server(web.Server):
    """Makes our connections, counts them, and looks at each once a second."""

    def __init__(
        self,
        plain: web.Server,
        limits: SocketLimits,
        options: Mapping[str, Any],
        handle: Handle | None = None,
    ) -> None:
        super().__init__(handle or plain.request_handler, request_factory=plain.request_factory, **options)
        self.limits = limits
        self._options = {"max_headers": _MAX_HEADERS, "keepalive_timeout": limits.idle_s, **options}
        files = _files()
        self._room = min(limits.connections, max(files - _SPARE_FILES, files // 2))
        self._open: set[Connection] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._made_room_at = 0.0

    def __call__(self) -> web.RequestHandler:
        return Connection(self, **self._options)

    def take(self, connection: Connection) -> bool:
        """Whether there is room for one more, if need be in the place of those who have waited longest."""
        if len(self._open) >= self._room:
            self._make_room()
        if len(self._open) >= self._room:
            _closed.labels("too_many").inc()
            return False
        self._open.add(connection)
        if self._looking is None:
            self._look_later()
        return True

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)

    async def shutdown(self, timeout: float | None = None) -> None:
        await super().shutdown(timeout)
        if self._looking is not None:
            self._looking.cancel()

    def _make_room(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._made_room_at < _WAITED_S:
            return
        self._made_room_at = now
        waiting = [each for each in self._open if each.waits and now - each.since >= _WAITED_S]
        waiting.sort(key=lambda each: (each.has_asked, each.since))
        for each in waiting[: max(self._room // 10, 1)]:
            self._open.discard(each)
            _closed.labels(each.abort("made_room")).inc()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self.limits.look_every_s, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._open):
            why = connection.look(now)
            if why is not None:
                _closed.labels(why).inc()
        if self._open:
            self._look_later()
        else:
            self._looking = None


def _files() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _as_bytes(problem: Problem) -> bytes:
    """The problem as a whole answer, for a connection on which no request is being answered."""
    response = problem_response(problem, str(uuid7()))
    body = cast("bytes", response.body)
    head = [
        f"HTTP/1.1 {problem.status} {response.reason}",
        *(f"{name}: {value}" for name, value in response.headers.items() if name != "Content-Length"),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
