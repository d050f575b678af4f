"""The connection to NATS: never waited for, rebuilt for ever, and nothing at all when there is no NATS (S1.2)."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, get_args

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from autopilot.kit import log, metrics, tasks
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import SystemClock
from autopilot.kit.config import Secret

State = Literal["connected", "connecting", "absent"]
WakeCallback = Callable[[str], None]
Content = Callable[[], bytes]

_logger = log.get_logger()
_dropped = metrics.counter("bus_wakes_dropped_total", "Wake-ups not sent because NATS was away")
_connects = metrics.counter("bus_connects_total", "Connections made to NATS")
_state = metrics.gauge(
    "bus_state", "1 for what the connection to NATS is: connected, connecting, absent", ["state"]
)

_CONNECT_TIMEOUT_S = 3
_PING_INTERVAL_S = 5
_CLOSE_TIMEOUT_S = 2.0
_FLUSH_TIMEOUT_S = 1
# The client does not always report its own end (a write that fails while closing hides it), so it is looked at.
_LOOK_EVERY_S = 0.5
_STEADY_AFTER_S = 5.0


class Bus:
    """One process's connection to NATS; `url=None` makes a bus on which nothing is said and nothing heard.

    The client library's own reconnecting is left off: each lost connection is replaced by a new client, which
    subscribes anew, so there is one way back and it is the one used at start. The servers of a cluster are given as
    URLs with commas between them, and any that answers will do.
    """

    def __init__(self, url: str | Secret | None, *, name: str, max_waiting: int = 1000) -> None:
        given = url.reveal() if isinstance(url, Secret) else url or ""
        self._urls = [each.strip() for each in given.split(",") if each.strip()]
        self._name = name
        self._max_waiting = max_waiting
        self._clock = SystemClock()
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._listeners: dict[str, list[Callable[[Msg], None]]] = {}
        self._on_connect: list[Callable[[], None]] = []
        self._subscribed: set[str] = set()
        self._waiting: dict[str, Content | None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """For health: anything but `connected` is degraded, never dead."""
        if not self._urls:
            return "absent"
        return "connected" if self.client is not None else "connecting"

    @property
    def client(self) -> Client | None:
        """The live client, if there is one at this moment."""
        client = self._client
        return client if client is not None and client.is_connected else None

    async def wait_connected(self) -> None:
        """Wait for a connection, for as long as it takes; a service has no reason to."""
        await self._connected.wait()

    def wake(self, subject: str) -> None:
        """Say that there may be something to do. Equal wake-ups of one moment are one; without NATS it is dropped."""
        self._say(subject, None)

    def tell(self, subject: str, content: Content) -> bool:
        """Say what others may like to know: `content` is asked when it can be sent. False without NATS: it will not be."""
        return self._say(subject, content)

    def on_wake(self, subject: str, callback: WakeCallback) -> None:
        """Call `callback(subject)` for each wake-up heard, from now on and after every reconnect; `*` is a wildcard."""
        self._listen(subject, lambda message: callback(message.subject))

    def on_tell(self, subject: str, callback: Callable[[bytes], None]) -> None:
        """Call `callback(content)` for each thing told, this process's own included. It comes from outside: check it."""
        self._listen(subject, lambda message: callback(message.data))

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after each connection made from now on: what failed for want of NATS may be tried again."""
        self._on_connect.append(callback)

    def _say(self, subject: str, content: Content | None) -> bool:
        waiting = self._waiting
        if subject in waiting:
            return True
        if self.client is None or len(waiting) >= self._max_waiting:
            _dropped.inc()
            return False
        waiting[subject] = content
        self._news.set()
        return True

    def _listen(self, subject: str, hear: Callable[[Msg], None]) -> None:
        self._listeners.setdefault(subject, []).append(hear)
        self._news.set()

    async def __aenter__(self) -> Self:
        _tell_state(weakref.ref(self))
        if self._urls:
            self._task = asyncio.create_task(self._stay_connected(), name="bus")
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            await self._say_the_last()
            await tasks.end(self._task)

    async def _say_the_last(self) -> None:
        """Whoever is about to end may have committed something just now: others need not find it by their poll."""
        client = self.client
        if client is not None and self._waiting:
            with suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._send(client)
                    await _reach_server(client, _FLUSH_TIMEOUT_S)

    async def _stay_connected(self) -> None:
        backoff = Backoff(first_s=0.1, last_s=5.0)
        now = asyncio.get_running_loop().time
        while True:
            client = Client()
            reason: Exception | None = None
            began = now()
            try:
                await self._connect(client)
                await self._serve(client)
            except Exception as error:  # noqa: BLE001 - the seam of this background task: no fault of a client ends it
                reason = error
            finally:
                self._client = None
                self._connected.clear()
                await _close(client)
            if now() - began > _STEADY_AFTER_S:
                backoff.reset()
            backoff.note_failure()
            self._urls.append(
                self._urls.pop(0)
            )  # one that takes connections and says nothing is not asked first again
            if backoff.failures == 1:
                _logger.warning("bus_away", error=type(reason).__name__, reason=str(reason or "disconnected"))
            await self._clock.sleep(backoff.next_delay_s())

    async def _connect(self, client: Client) -> None:
        async def note_end() -> None:
            self._news.set()

        async def note_error(error: Exception) -> None:
            expected = isinstance(error, nats.errors.Error | OSError | asyncio.TimeoutError)
            report = _logger.debug if expected else _logger.error
            report("bus_client_error", error=type(error).__name__, reason=str(error))

        async with asyncio.timeout(_CONNECT_TIMEOUT_S * len(self._urls) + 1):
            await client.connect(
                self._urls,
                name=self._name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_TIMEOUT_S,
                flush_timeout=_CONNECT_TIMEOUT_S,
                ping_interval=_PING_INTERVAL_S,
                closed_cb=note_end,
                disconnected_cb=note_end,
                error_cb=note_error,
            )
        self._subscribed.clear()
        await self._subscribe(client)
        await _reach_server(client, _CONNECT_TIMEOUT_S)
        self._client = client
        self._connected.set()
        _connects.inc()
        _logger.info("bus_connected")
        for callback in self._on_connect:
            callback()

    async def _serve(self, client: Client) -> None:
        while client.is_connected:
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._news.wait()
            self._news.clear()
            await self._subscribe(client)
            await self._send(client)

    async def _send(self, client: Client) -> None:
        waiting, self._waiting = self._waiting, {}
        for subject, content in waiting.items():
            await client.publish(subject, b"" if content is None else content())

    async def _subscribe(self, client: Client) -> None:
        for subject in self._listeners.keys() - self._subscribed:
            await client.subscribe(subject, cb=self._hear(subject))
            self._subscribed.add(subject)

    def _hear(self, pattern: str) -> Callable[[Msg], Awaitable[None]]:
        async def hear(message: Msg) -> None:
            for listener in self._listeners[pattern]:
                listener(message)

        return hear


async def _reach_server(client: Client, timeout_s: int) -> None:
    """Wait until the server has read all that was said before; FlushTimeoutError after `timeout_s` seconds, twice at most.

    The ping of a flush is written past what the client still buffers: the first one lets that out, the second follows it.
    """
    for _ in range(2):
        await client.flush(timeout_s)


async def _close(client: Client) -> None:
    # A client that never began to connect asserts; one that is closed already does nothing.
    with suppress(nats.errors.Error, OSError, asyncio.TimeoutError, AssertionError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await client.close()


def _tell_state(bus: weakref.ref[Bus]) -> None:
    """Let metrics ask this bus for its state while it is there; of several the newest is asked."""

    def ask(state: State) -> Callable[[], float]:
        return lambda: (asked := bus()) is not None and asked.state == state

    for state in get_args(State):
        _state.labels(state).set_function(ask(state))
