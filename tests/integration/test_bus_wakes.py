"""Wake-ups over a real NATS server that comes, goes and comes back (S1.2)."""

from __future__ import annotations

import asyncio
import signal
import time
from uuid import UUID

import pytest
from tests.support.nats import NatsServer, free_port, nats_server

from autopilot.bus import subjects
from autopilot.bus.connection import Bus
from autopilot.kit.config import Secret

RUNTIME = UUID("01890000-0000-7000-8000-000000000001")


class Ear:
    """Collects the wake-ups heard and waits for the next one."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, subject: str) -> None:
        self.heard.put_nowait(subject)

    async def next(self) -> str:
        async with asyncio.timeout(30):
            return await self.heard.get()


async def connected(*buses: Bus) -> None:
    async with asyncio.timeout(30):
        for bus in buses:
            await bus.wait_connected()


async def disconnected(bus: Bus) -> None:
    async with asyncio.timeout(30):
        while bus.state == "connected":
            await asyncio.sleep(0.01)


async def test_a_wake_up_reaches_another_process_connection() -> None:
    ear = Ear()
    async with nats_server() as server, Bus(server.url, name="a") as one, Bus(server.url, name="b") as two:
        two.on_wake(subjects.wake_dispatch, ear)
        await connected(one, two)
        one.wake(subjects.wake_dispatch)
        assert await ear.next() == subjects.wake_dispatch


async def test_who_is_connected_is_listening() -> None:
    """What is said from then on must not overtake the subscription: the server has answered something that came after it."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"a","version":"2.10.0","proto":1,"max_payload":1000}\r\n')
        while line := await reader.readline():
            lines.append(line.split()[0])
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Bus(f"nats://127.0.0.1:{port}", name="a") as bus:
        bus.on_wake(subjects.wake_dispatch, Ear())
        await connected(bus)
        assert b"PING" in lines[lines.index(b"SUB") :]


async def test_what_is_said_last_of_all_is_heard() -> None:
    """S15: a process that commits and ends wakes the others first."""
    ear = Ear()
    async with nats_server() as server, Bus(server.url, name="stays") as stays:
        stays.on_wake(subjects.wake_dispatch, ear)
        async with Bus(server.url, name="ends") as ends:
            await connected(stays, ends)
            ends.wake(subjects.wake_dispatch)
        assert await ear.next() == subjects.wake_dispatch


async def test_equal_wake_ups_of_one_moment_are_sent_once() -> None:
    ear = Ear()
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        bus.on_wake("autopilot.wake.*", ear)
        await connected(bus)
        for _ in range(500):
            bus.wake(subjects.wake_dispatch)
        bus.wake(subjects.wake_schedule)
        assert [await ear.next(), await ear.next()] == [subjects.wake_dispatch, subjects.wake_schedule]
        assert ear.heard.empty()


async def test_what_is_told_is_asked_for_when_it_is_sent() -> None:
    """Told twice in one moment it is sent once, with all that has gathered by then."""
    told: asyncio.Queue[bytes] = asyncio.Queue()
    gathered: list[str] = []
    async with nats_server() as server, Bus(server.url, name="a") as one, Bus(server.url, name="b") as two:
        two.on_tell(subjects.abuse, told.put_nowait)
        await connected(one, two)
        for word in ("this", "and", "that"):
            gathered.append(word)
            assert one.tell(subjects.abuse, lambda: " ".join(gathered).encode())
        async with asyncio.timeout(30):
            assert await told.get() == b"this and that"
        assert told.empty()


async def test_without_nats_nothing_is_told_and_it_says_so() -> None:
    async with Bus(None, name="a") as absent, Bus(f"nats://127.0.0.1:{free_port()}", name="b") as away:
        for bus in (absent, away):
            assert not bus.tell(subjects.abuse, lambda: b"never asked for")


async def test_a_wildcard_hears_every_runtime_and_names_it() -> None:
    ear = Ear()
    async with nats_server() as server, Bus(Secret(server.url), name="a") as bus:
        bus.on_wake(subjects.wake_any_runtime, ear)
        await connected(bus)
        bus.wake(subjects.wake_runtime(RUNTIME))
        assert subjects.runtime_of(await ear.next()) == RUNTIME


async def test_wake_ups_flow_again_after_the_server_was_killed_and_restarted() -> None:
    """NA1, NA3: the process needs no restart and no call to reconnect."""
    ear = Ear()
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        bus.on_wake(subjects.wake_dispatch, ear)
        await connected(bus)
        for how in (signal.SIGKILL, signal.SIGTERM):
            await server.stop(how)
            await disconnected(bus)
            bus.wake(subjects.wake_dispatch)  # dropped, and nobody waits for it
            await server.start()
            await connected(bus)
            bus.wake(subjects.wake_dispatch)
            assert await ear.next() == subjects.wake_dispatch
            assert ear.heard.empty()


async def test_a_server_that_never_ran_holds_nobody_up_and_is_used_when_it_comes() -> None:
    ear = Ear()
    server = NatsServer(free_port(), None)
    async with Bus(server.url, name="a") as bus:
        bus.on_wake(subjects.wake_dispatch, ear)
        bus.wake(subjects.wake_dispatch)
        assert bus.state == "connecting"
        await server.start()
        try:
            await connected(bus)
            bus.wake(subjects.wake_dispatch)
            assert await ear.next() == subjects.wake_dispatch
        finally:
            await server.stop()


@pytest.mark.parametrize(("stays_s", "within_s"), [(0, 0.2), (0.05, 1)], ids=["coming", "leaving"])
async def test_a_bus_that_cannot_connect_takes_no_time(stays_s: float, within_s: float) -> None:
    """The quickest of a few: a machine that pauses holds up one of them, a bus that waits for something each."""
    took = []
    for _ in range(4):
        began = time.monotonic()
        async with Bus(f"nats://127.0.0.1:{free_port()}", name="a") as bus:
            bus.wake(subjects.wake_dispatch)
            await asyncio.sleep(stays_s)
        took.append(time.monotonic() - began)
    assert min(took) < within_s


async def test_an_absent_bus_does_nothing() -> None:
    async with Bus(None, name="a") as bus:
        bus.on_wake(subjects.wake_dispatch, lambda _: None)
        bus.wake(subjects.wake_dispatch)
        assert bus.state == "absent"


async def test_a_callback_that_raises_ends_nothing() -> None:
    """NA4."""
    ear = Ear()

    def angry(subject: str) -> None:
        ear(subject)
        raise ValueError("not today")

    async with nats_server() as server, Bus(server.url, name="a") as bus:
        bus.on_wake(subjects.wake_dispatch, angry)
        await connected(bus)
        for _ in range(2):
            bus.wake(subjects.wake_dispatch)
            assert await ear.next() == subjects.wake_dispatch


async def test_the_buffer_of_wake_ups_is_bounded() -> None:
    ear = Ear()
    async with nats_server() as server, Bus(server.url, name="a", max_waiting=3) as bus:
        bus.on_wake("autopilot.wake.runtime.*", ear)
        await connected(bus)
        for number in range(10):
            bus.wake(f"autopilot.wake.runtime.{number}")
        bus.wake("autopilot.wake.runtime.0")
        heard = [await ear.next() for _ in range(3)]
        assert heard == [f"autopilot.wake.runtime.{number}" for number in range(3)]
        assert ear.heard.empty()
