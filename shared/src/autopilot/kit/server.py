"""Running an aiohttp application: bounded headers, no silent connections, no request line in what it says (S9.12)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from autopilot.domain.errors import AutopilotError
from autopilot.kit import log
from autopilot.kit.http import MAX_HEADER_BYTES, Problem, problem_response
from autopilot.kit.ids import uuid7

_FIRST_REQUEST_S = 15.0

_logger = log.get_logger()


class StartRefused(AutopilotError):
    """The service cannot start as it is set up."""


async def serve(app: web.Application, host: str, port: int, *, what: str, **options: Any) -> web.AppRunner:
    """Start a server; StartRefused says in a sentence why it cannot listen. `options` go to aiohttp's AppRunner."""
    runner = _Runner(app, **(_OPTIONS | options))
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        await runner.cleanup()
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise StartRefused(f"{what}: cannot listen on {host}:{port}: {reason}") from error
    _logger.info("listening", what=what, host=host, port=port_of(runner))
    return runner


def port_of(runner: web.AppRunner) -> int:
    """The port that a server listens on, which the system chose where 0 was asked for."""
    port: int = runner.addresses[0][1]
    return port


_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "handle_signals": False,
    "max_line_size": MAX_HEADER_BYTES,
    "max_field_size": MAX_HEADER_BYTES,
    "keepalive_timeout": 75.0,
    "lingering_time": 2.0,
    "auto_decompress": False,
}


class _Connection(web.RequestHandler):
    """A connection that closes when no request comes, and that never repeats what a broken request said."""

    __slots__ = ("_silence", "asked")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.asked = False
        self._silence = asyncio.get_running_loop().call_later(_FIRST_REQUEST_S, self._close_if_silent)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._silence.cancel()
        super().connection_lost(exc)

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
            problem = Problem(431, "headers_too_large", "The request line or a header is larger than 16 KiB.")
        else:
            problem = Problem(status, "bad_request", "This is not an HTTP request that can be read.")
        response = problem_response(problem, str(uuid7()))
        response.force_close()
        return response

    def _close_if_silent(self) -> None:
        if not self.asked:
            self.force_close()


class _Server(web.Server):
    """Makes our connections, and tells each when it has got a request."""

    def __init__(self, plain: web.Server, options: Mapping[str, Any]) -> None:
        make_request = plain.request_factory

        def note_request(*arguments: Any) -> web.BaseRequest:
            arguments[2].asked = True
            return make_request(*arguments)

        super().__init__(plain.request_handler, request_factory=note_request, **options)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


class _Runner(web.AppRunner):
    """An AppRunner whose connections are ours."""

    async def _make_server(self) -> web.Server:
        options = {name: value for name, value in self._kwargs.items() if name != "access_log_class"}
        return _Server(await super()._make_server(), options)
