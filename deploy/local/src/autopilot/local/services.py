"""The four services as child processes: how each is started and when it is ready."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autopilot.local.errors import LocalError
from autopilot.local.ports import LOOPBACK
from autopilot.local.processes import Child

READY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ServiceKind:
    """`http_port` is the variable for the port of its own HTTP server, if it has one beside its health."""

    name: str
    module: str
    http_port: str | None = None


# In the order of starting: who takes work from outside comes last, and stops first.
KINDS = (
    ServiceKind("dispatcher", "autopilot.dispatcher"),
    ServiceKind("scheduler", "autopilot.scheduler"),
    ServiceKind("rules-api", "autopilot.rules_api", "AUTOPILOT_API_PORT"),
    ServiceKind("ingress", "autopilot.ingress", "AUTOPILOT_INGRESS_PORT"),
)
BY_NAME = {kind.name: kind for kind in KINDS}


class ServiceProcess(Child):
    """One replica of a service. It keeps its ports over `kill` and `restart`."""

    def __init__(
        self,
        kind: ServiceKind,
        number: int,
        folder: Path,
        *,
        env: Mapping[str, str],
        health_port: int,
        http_port: int | None,
    ) -> None:
        self.kind = kind
        self.health_port = health_port
        self.http_port = http_port
        own = {"AUTOPILOT_HEALTH_PORT": str(health_port)}
        if kind.http_port is not None and http_port is not None:
            own[kind.http_port] = str(http_port)
        name = kind.name if number == 0 else f"{kind.name}-{number}"
        super().__init__(name, [sys.executable, "-m", kind.module], folder, env={**env, **own})

    @property
    def url(self) -> str:
        """Where its own HTTP server answers."""
        assert self.http_port is not None, f"{self.name} serves no HTTP but its health"
        return f"http://{LOOPBACK}:{self.http_port}"

    def readiness(self) -> tuple[bool, str]:
        """What /readyz says now: whether it is ready, and why not."""
        return probe(self.health_port)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until /readyz answers 200; LocalError says in one sentence why it does not."""
        deadline = time.monotonic() + timeout_s
        while True:
            ready, why = self.readiness()
            if ready:
                return
            if (code := self.exit_code) is not None:
                raise LocalError(f"{self.name} {ended(code)}: {self.last_words()} (log: {self.log})")
            if time.monotonic() >= deadline:
                raise LocalError(f"{self.name} was not ready in {timeout_s:.0f} s: {why} (log: {self.log})")
            time.sleep(0.05)

    def restart(self) -> None:
        """Stop it in order, start it anew and wait until it is ready."""
        self.stop()
        self.start()
        self.wait_ready()


def probe(health_port: int) -> tuple[bool, str]:
    """Ask a service's /readyz: whether it is ready, and why not."""
    connection = http.client.HTTPConnection(LOOPBACK, health_port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return False, "it does not answer"
    finally:
        connection.close()
    return response.status == 200, _faults(body)


def ended(code: int) -> str:
    """An exit code in words; a negative one is the signal that ended the process."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _faults(body: bytes) -> str:
    try:
        faults = json.loads(body)["faults"]
        return ", ".join(f"{name}: {reason}" for name, reason in faults.items())
    except (ValueError, LookupError, AttributeError, TypeError):
        return "its health answers nonsense"
