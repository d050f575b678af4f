"""What the person at the terminal chooses: ports and servers, by environment variables with working defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from autopilot.local.errors import LocalError

PREFIX = "AUTOPILOT_LOCAL_"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Loopback ports; 0 takes a free one. The health servers take `health` and the ports after it."""

    api: int = 0
    ingress: int = 0
    health: int = 0
    postgres: int = 0
    nats: int = 0


FREE_PORTS = Ports()
USUAL_PORTS = Ports(api=8080, ingress=8081, health=9080, postgres=54329, nats=42229)


def port_variable(field: str) -> str:
    """The variable that chooses this port."""
    return f"{PREFIX}{field.upper()}_PORT"


def ports_from(environ: Mapping[str, str]) -> Ports:
    """The usual ports, where no variable chooses another."""
    chosen = {}
    for field in fields(Ports):
        text = environ.get(port_variable(field.name), "").strip()
        if text and not (text.isdecimal() and int(text) <= 65535):
            raise LocalError(f"{port_variable(field.name)} is {text!r}, not a port number.")
        chosen[field.name] = int(text) if text else getattr(USUAL_PORTS, field.name)
    return Ports(**chosen)
