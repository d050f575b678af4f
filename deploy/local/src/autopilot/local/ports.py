"""Loopback ports: which are free, and who sits on one that is not."""

from __future__ import annotations

import contextlib
import secrets
import socket

import psutil

from autopilot.local.errors import LocalError

LOOPBACK = "127.0.0.1"
FREE_FROM, FREE_COUNT = 15_000, 15_000
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on now, and that nobody here was given. Another process may still take it before its use.

    From below the range in which systems choose ports for outgoing connections: one of those, made while a service
    is still starting, would take its port away.
    """
    while True:
        port = FREE_FROM + secrets.randbelow(FREE_COUNT)
        if port not in _given and is_free(port):
            if len(_given) > FREE_COUNT // 2:
                _given.clear()
            _given.add(port)
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def require_free(port: int, purpose: str, variable: str) -> None:
    """Refuse a taken port, naming its holder where the system tells, and the variable that chooses another."""
    if is_free(port):
        return
    raise LocalError(
        f"Port {port}, wanted for {purpose}, is in use{_holder(port)}: stop that process or set {variable}."
    )


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,)
            if listens and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""
