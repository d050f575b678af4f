"""The runtime itself: it registers, says that it lives, claims, renews, and stops in order (S11.3, S11.4, S11.7)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

import click
import msgspec

from autopilot.cli.client import ApiClient
from autopilot.cli.config import Connection
from autopilot.cli.errors import ApiProblem, may_pass
from autopilot.cli.runtime.check import EVERY_S, Usable, check_usable
from autopilot.cli.runtime.execution import RETRY_LAST_S, Command, Execution
from autopilot.cli.runtime.process import StopReason
from autopilot.cli.runtime.protocol import Registration, RuntimeApi, Task
from autopilot.domain.errors import AutopilotError
from autopilot.kit import log
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import Clock, SystemClock
from autopilot.kit.ids import random_token

# After SIGTERM: 10 s for the commands, the rest for telling how they ended.
GRACE_S = 25.0
# A server that answers "nothing" at once, as one that drains does, is not asked more often than this.
CLAIM_SPACING_S = 1.0

_logger = log.get_logger()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `runtime run` was told. `check` is a command that says whether the agent program can run."""

    command: Command
    name: str
    concurrency: int = 1
    capabilities: Mapping[str, str] = msgspec.field(default_factory=dict)
    check: str | None = None


class RegistrationRefused(AutopilotError):
    """The API does not take this runtime."""


class Worker:
    """Holds at most `concurrency` tasks. While the API is away, commands run on and everything is tried again."""

    def __init__(
        self,
        api: RuntimeApi,
        options: Options,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._options = options
        self._clock = clock or SystemClock()
        self._registration: Registration | None = None
        self._was_taken = False
        self._registering = asyncio.Lock()
        self._held: dict[str, Execution] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._claim: tuple[str, int] | None = None
        self._usable = Usable()
        self._may_work = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping`, then end all tasks. A refusal that no waiting can heal is raised."""
        claiming = self._repeat("claim", self._claim_step)
        others = [
            self._repeat("heartbeat", self._heartbeat_step),
            self._repeat("renew", self._renew_step),
            self._repeat("check", self._check_step),
        ]
        loops = [_spawn(claiming), *(_spawn(other) for other in others)]
        stop = _spawn(stopping.wait())
        try:
            await asyncio.wait({*loops, stop}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel([loops[0]])
            await self._end_tasks()
            await self._say_goodbye()
            for loop in loops:
                if loop.done() and not loop.cancelled():
                    loop.result()
        finally:
            await _cancel([*loops, stop, *self._running.values()])

    async def _repeat(self, what: str, step: Callable[[Registration], Awaitable[float]]) -> None:
        """Do the step for ever, each time after the pause that the one before asked for."""
        backoff = Backoff(last_s=RETRY_LAST_S)
        while True:
            registration: Registration | None = None
            try:
                registration = await self._registered()
                pause_s = await step(registration)
            except AutopilotError as error:
                if isinstance(error, ApiProblem) and error.status == HTTPStatus.NOT_FOUND:
                    self._forget(registration)
                elif not may_pass(error):
                    raise
                backoff.note_failure()
                pause_s = backoff.next_delay_s()
                _logger.warning(
                    "runtime_waits_for_api", call=what, failures=backoff.failures, reason=error.message
                )
            else:
                if backoff.failures:
                    _logger.info("runtime_recovered", call=what, failures=backoff.failures)
                backoff.reset()
            await self._clock.sleep(pause_s)

    async def _registered(self) -> Registration:
        """Who we are; RegistrationRefused if the API will not have us, or was never one that we understand."""
        async with self._registering:
            if self._registration is None:
                try:
                    registration = await self._api.register(
                        self._options.name, self._options.concurrency, self._options.capabilities
                    )
                except AutopilotError as error:
                    if error.infrastructure or (may_pass(error) and self._was_taken):
                        raise
                    raise RegistrationRefused(f"The runtime is not taken. {error.message}") from error
                _logger.info(
                    "runtime_registered", runtime_id=registration.runtime_id, name=self._options.name
                )
                self._registration, self._was_taken = registration, True
            return self._registration

    def _forget(self, registration: Registration | None) -> None:
        """The server does not know us (any more): register again, unless another loop has done so already."""
        if self._registration is registration:
            self._registration = None
            self._claim = None

    async def _heartbeat_step(self, registration: Registration) -> float:
        said = self._usable
        await self._api.heartbeat(
            registration.runtime_id, usable=said.usable, detail=said.detail, repair_hint=said.repair_hint
        )
        return registration.heartbeat_s

    async def _check_step(self, registration: Registration) -> float:
        """Nothing is claimed before the first check, and nothing while the agent program cannot run."""
        if self._options.check is None:
            self._may_work.set()
            await asyncio.Event().wait()
        before, self._usable = (
            self._usable,
            await check_usable(self._options.check or "", self._options.command),
        )
        if self._usable.usable:
            self._may_work.set()
        else:
            self._may_work.clear()
        if self._usable.usable is not before.usable:
            _logger.warning("agent_program_checked", usable=self._usable.usable)
            await self._heartbeat_step(registration)
        return EVERY_S

    async def _renew_step(self, registration: Registration) -> float:
        held = list(self._held.values())
        if held:
            asked = [(execution.task, execution.progress()) for execution in held]
            answers = await self._api.renew(registration.runtime_id, asked)
            for execution, answer in zip(held, answers, strict=False):
                execution.renewed(answer.state)
        return registration.renew_s

    async def _claim_step(self, registration: Registration) -> float:
        await self._may_work.wait()
        free = self._options.concurrency - len(self._held)
        if free <= 0:
            self._freed.clear()
            await self._freed.wait()
            return 0.0
        if self._claim is None:
            self._claim = (str(random_token()), free)
        claim_id, limit = self._claim  # the same as before, if the answer of the last one did not arrive
        began = self._clock.monotonic()
        tasks = await self._api.claim(registration.runtime_id, claim_id, limit, registration.poll_s)
        self._claim = None
        for task in tasks:
            self._begin(task)
        return 0.0 if tasks else max(0.0, CLAIM_SPACING_S - (self._clock.monotonic() - began))

    def _begin(self, task: Task) -> None:
        if task.lease_token in self._held:
            return
        earlier = [token for token, held in self._held.items() if held.task.id == task.id]
        for token in earlier:  # we lost it without noticing, and now have it again
            self._held[token].stop.request(StopReason.LOST)
        execution = Execution(task, api=self._api, command=self._options.command, clock=self._clock)
        self._held[task.lease_token] = execution
        self._running[task.lease_token] = _spawn(
            self._execute(execution, [self._running[token] for token in earlier])
        )

    async def _execute(self, execution: Execution, earlier: list[asyncio.Task[None]]) -> None:
        try:
            if earlier:
                await asyncio.wait(earlier)
            await execution.run()
        finally:
            del self._held[execution.task.lease_token]
            del self._running[execution.task.lease_token]
            self._freed.set()

    async def _end_tasks(self) -> None:
        _logger.info("runtime_stopping", tasks=len(self._held))
        for execution in self._held.values():
            execution.stop.request(StopReason.SHUTDOWN)
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=GRACE_S)

    async def _say_goodbye(self) -> None:
        if self._registration is not None:
            try:
                await self._api.bye(self._registration.runtime_id)
            except AutopilotError as error:
                _logger.info("runtime_left_unannounced", reason=error.message)


async def run_until_stopped(connection: Connection, options: Options) -> None:
    """Run until SIGTERM or SIGINT; a second signal kills the commands and exits at once."""
    log.configure("runtime")
    stopping = asyncio.Event()
    received: list[signal.Signals] = []
    async with ApiClient(connection) as client:
        working = _spawn(Worker(RuntimeApi(client), options).run(stopping))

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            if stopping.is_set():
                working.cancel()
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        try:
            await working
        except asyncio.CancelledError:
            raise click.exceptions.Exit(128 + received[-1] if received else 1) from None
    _logger.info("runtime_stopped")


def _spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel and wait for the end; what they raised on the way is not of interest here."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
