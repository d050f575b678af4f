"""Health: /livez without the database, /readyz with it, /metrics, on a port of their own (S15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web

from autopilot.kit import http, log, metrics
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.loop import Loop

Check = Callable[[], Awaitable[object]]

_logger = log.get_logger()
_ready = metrics.gauge("ready", "1 while this process says it is ready")
_build = metrics.gauge("build_info", "1, with the versions of what runs as labels", ["version", "tzdata"])
_lag = metrics.gauge("event_loop_lag_seconds", "How late the event loop ran a timer, last look")

_CHECK_TIMEOUT_S = 5.0


class Health:
    """What this process knows about itself. `watch()` looks each second; requests are answered from the last look."""

    def __init__(self, service: str, *, every_s: float = 1.0, clock: Clock | None = None) -> None:
        self._service = service
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._checks: dict[str, Check] = {}
        self._faults: dict[str, str] = {"start": "starting"}
        self._degraded: dict[str, Callable[[], str | None]] = {}
        self._loops: list[Loop] = []
        self._lag_s = 0.0
        self._phase = "starting"

    def tell_build(self) -> None:
        """Let metrics say what runs here; a process of a service does, once."""
        versions = _versions()
        _build.labels(versions.get("autopilot-shared", ""), versions.get("tzdata", "")).set(1)

    def check(self, name: str, check: Check) -> None:
        """Ready only while `check()` returns in 5 s without raising; when it recovers, every loop tries at once."""
        self._checks[name] = check

    def degraded(self, name: str, reason: Callable[[], str | None]) -> None:
        """Something that is worth saying and never makes the process unready; None means all is well."""
        self._degraded[name] = reason

    def loop(self, loop: Loop) -> None:
        """Ready only while this loop is not stalled."""
        self._loops.append(loop)

    def forget(self) -> None:
        """Drop what was registered, for a service that is built anew."""
        self._checks.clear()
        self._degraded.clear()
        self._loops.clear()

    def started(self) -> None:
        """From now on readiness depends on the checks."""
        self._phase = "running"

    def draining(self) -> None:
        """Never ready again."""
        self._phase = "draining"
        _ready.set(0)

    def faults(self) -> dict[str, str]:
        """Why the process is not ready; empty means ready."""
        if self._phase != "running":
            return {"phase": self._phase}
        stalled = {f"loop {loop.name}": "stalled" for loop in self._loops if loop.stalled}
        return self._faults | stalled

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            began = self._clock.monotonic()
            await self._clock.sleep(self._every_s)
            self._lag_s = max(0.0, self._clock.monotonic() - began - self._every_s)
            _lag.set(self._lag_s)

    async def look(self) -> None:
        """Run every check once."""
        names = list(self._checks)
        outcomes = await asyncio.gather(*(self._try(self._checks[name]) for name in names))
        faults = {name: fault for name, fault in zip(names, outcomes, strict=True) if fault is not None}
        recovered = self._faults.keys() - faults.keys() - {"start"}
        for name in faults.keys() - self._faults.keys():
            _logger.warning("check_failed", check=name, reason=faults[name])
        self._faults = faults
        if recovered:
            _logger.info("check_recovered", checks=sorted(recovered))
            for loop in self._loops:
                loop.retry_now()
        _ready.set(not self.faults())

    def app(self) -> web.Application:
        """The server of /livez, /readyz and /metrics."""
        app = web.Application(middlewares=[http.server_middleware()])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _try(self, check: Check) -> str | None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                await check()
        except TimeoutError:
            return f"no answer in {_CHECK_TIMEOUT_S:g} s"
        except Exception as error:  # noqa: BLE001 - a check that fails in any way is a fault to report, not to raise
            return log.redact_text(f"{type(error).__name__}: {error}")
        return None

    async def _livez(self, _request: web.Request) -> web.Response:
        return http.json_response({"service": self._service, "loop_lag_s": round(self._lag_s, 3)})

    async def _readyz(self, _request: web.Request) -> web.Response:
        faults = self.faults()
        degraded = {name: reason() for name, reason in self._degraded.items()}
        report: dict[str, Any] = {
            "service": self._service,
            "ready": not faults,
            "faults": faults,
            "degraded": {name: reason for name, reason in degraded.items() if reason is not None},
            "loops": {loop.name: "failing" if loop.failing else "ok" for loop in self._loops},
            "versions": _versions(),
        }
        return http.json_response(report, status=503 if faults else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": metrics.CONTENT_TYPE})


def _versions() -> dict[str, str]:
    found = {}
    for distribution in ("autopilot-shared", "tzdata", "aiohttp", "asyncpg", "nats-py"):
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            continue
    return found
