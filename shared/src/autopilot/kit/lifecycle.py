"""From start to exit, the same for every service: configuration, log, resources, loops, servers, an orderly stop (S15)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from aiohttp import web

from autopilot.domain.errors import AutopilotError, InfrastructureError
from autopilot.kit import config as configuration
from autopilot.kit import log, points, tasks
from autopilot.kit.backoff import Backoff
from autopilot.kit.health import Health
from autopilot.kit.loop import Loop
from autopilot.kit.server import serve

T = TypeVar("T")
C = TypeVar("C", bound=configuration.CommonConfig)

_logger = log.get_logger()

_ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000

EXIT_STOPPED = 0
EXIT_NOT_DRAINED = 1
EXIT_REFUSED = 2


class Service:
    """What a service is made of, collected by its `build` function; started and stopped by `run_service`."""

    def __init__(self, name: str, *, grace_s: float = 30.0) -> None:
        self.name = name
        self.grace_s = grace_s
        self.health = Health(name)
        self._stack = AsyncExitStack()
        self._loops: list[Loop] = []
        self._sites: list[tuple[web.Application, str, int, dict[str, Any]]] = []
        self._runners: list[web.AppRunner] = []
        self._on_drain: list[Callable[[], None]] = []

    async def resource(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter a resource now; it is left after loops and servers have stopped, in reverse order."""
        return await self._stack.enter_async_context(manager)

    def loop(self, loop: Loop) -> Loop:
        """Run this loop from start to stop."""
        self._loops.append(loop)
        self.health.loop(loop)
        return loop

    def http(self, app: web.Application, host: str, port: int, **options: Any) -> None:
        """Serve this application; port 0 takes a free one. `options` go to aiohttp's AppRunner."""
        # Handlers get the first part of the grace period; loops and resources need the rest.
        self._sites.append((app, host, port, {"shutdown_timeout": self.grace_s * 0.6} | options))

    def on_drain(self, act: Callable[[], None]) -> None:
        """Call this when the stop begins: answer long polls, end streams, so that the servers can close."""
        self._on_drain.append(act)

    async def start(self) -> None:
        """Listen, then run the loops: where the port is taken, no work has begun."""
        for app, host, port, options in self._sites:
            self._runners.append(await serve(app, host, port, what=self.name, **options))
        for loop in self._loops:
            loop.start()
        self.health.started()

    async def abandon(self) -> None:
        """Leave what `build` has entered so far and forget the rest, so that it can be built again."""
        await self._stack.aclose()
        self._loops.clear()
        self._sites.clear()
        self._on_drain.clear()
        self.health.forget()

    async def stop(self) -> bool:
        """Stop taking, finish or hand back, leave every resource; whether all was done within the grace period."""
        deadline = asyncio.get_running_loop().time() + self.grace_s

        def left_s() -> float:
            return max(0.0, deadline - asyncio.get_running_loop().time())

        self.health.draining()
        for act in self._on_drain:
            act()
        drained = True
        try:
            async with asyncio.timeout(left_s()):
                await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        except TimeoutError:
            drained = False
        stopped = await asyncio.gather(*(loop.stop(left_s()) for loop in self._loops))
        try:
            async with asyncio.timeout(left_s() + 1.0):
                await self._stack.aclose()
        except TimeoutError:
            drained = False
        return drained and all(stopped)


Build = Callable[[Service, C], Awaitable[None]]


def run_service(
    name: str, config_type: type[C], build: Build[C], *, environ: Mapping[str, str] | None = None
) -> int:
    """Run a service until SIGTERM or SIGINT and return its exit code; a second signal exits at once.

    0: stopped in order. 1: the grace period ran out. 2: it could not start, and one sentence on stderr says why.
    """
    given = os.environ if environ is None else environ
    try:
        config = configuration.load(config_type, given)
        log.configure(name, config.log_level)
        points.arm_from_environment(given)
        for line in configuration.misspelt(config_type, given):
            _logger.warning("unknown_setting", hint=line)
        return _run(_main(name, config, build))
    except configuration.ConfigError as error:
        lines = "".join(f"  {fault}\n" for fault in error.faults)
        sys.stderr.write(f"autopilot {name} cannot start, its configuration is refused:\n{lines}")
    except AutopilotError as error:
        sys.stderr.write(f"autopilot {name} cannot start: {log.redact_text(str(error))}\n")
    return EXIT_REFUSED


async def _main(name: str, config: C, build: Build[C]) -> int:
    stop = _stop_on_signals()
    stopping = asyncio.create_task(stop.wait())
    service = Service(name, grace_s=config.grace_s)
    service.health.tell_build()
    watched = await serve(service.health.app(), config.health_host, config.health_port, what="health")
    starting = asyncio.create_task(_build_and_start(service, config, build))
    watching: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is None:
            watching = asyncio.create_task(service.health.watch())
            _spare_collector()
            _logger.info("service_started")
            await stopping
        _logger.info("service_stopping", grace_s=config.grace_s)
        await tasks.end(starting)
        drained = await service.stop()
        _logger.info("service_stopped", drained=drained)
        if not starting.cancelled():
            starting.result()  # a start that was refused is reported once all is closed again
        return EXIT_STOPPED if drained else EXIT_NOT_DRAINED
    finally:
        stopping.cancel()
        if watching is not None:
            watching.cancel()
        await watched.cleanup()


async def _build_and_start(service: Service, config: C, build: Build[C]) -> None:
    backoff = Backoff(last_s=5.0)
    while True:
        try:
            await build(service, config)
            break
        except InfrastructureError as error:  # a database that is down at start is waited for (S1.3)
            backoff.note_failure()
            _logger.warning("start_waits_for_infrastructure", error=type(error).__name__, reason=str(error))
            await service.abandon()
            await asyncio.sleep(backoff.next_delay_s())
    await service.start()


def _spare_collector() -> None:
    """What start has made lives as long as the process: it is collected once, never looked through again.

    Nearly all that a request makes dies by its reference count; looking for cycles among the living every 700 allocations
    was an eighth of the time of a webhook.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 10, 10)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            _logger.warning("service_killed", signal=number.name)
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
