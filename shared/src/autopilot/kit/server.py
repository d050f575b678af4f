"""Running an aiohttp application: where it listens, and what every server of ours has in common."""

from __future__ import annotations

import os
from typing import Any

from aiohttp import web

from autopilot.domain.errors import AutopilotError
from autopilot.kit import log
from autopilot.kit.connections import Handle, Server, SocketLimits
from autopilot.kit.http import MAX_HEADER_BYTES

HANDLE: web.AppKey[Handle] = web.AppKey("handle")
"""What answers every request of an application in the place of routes and middlewares, `Expect` included."""

_logger = log.get_logger()


class StartRefused(AutopilotError):
    """The service cannot start as it is set up."""


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    what: str,
    limits: SocketLimits | None = None,
    **options: Any,
) -> web.AppRunner:
    """Start a server; StartRefused says in a sentence why it cannot listen. `options` go to aiohttp's AppRunner."""
    runner = _Runner(app, limits or SocketLimits(), **(_OPTIONS | options))
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
    "lingering_time": 2.0,
    "auto_decompress": False,
}


class _Runner(web.AppRunner):
    """An AppRunner whose connections are ours."""

    def __init__(self, app: web.Application, limits: SocketLimits, **options: Any) -> None:
        super().__init__(app, **options)
        self._limits = limits

    async def _make_server(self) -> web.Server:
        options = {name: value for name, value in self._kwargs.items() if name != "access_log_class"}
        return Server(await super()._make_server(), self._limits, options, self.app.get(HANDLE))
