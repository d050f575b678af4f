"""What every bus keeps, be NATS there, away or never asked for: nothing waits, and a loop works all the same (S1.2, S1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.support.nats import free_port, nats_server

from autopilot.bus import subjects
from autopilot.bus.connection import Bus, State
from autopilot.bus.errors import BusUnavailable
from autopilot.bus.events import EventPublisher
from autopilot.kit.loop import Loop

KINDS = ("absent", "away", "there")
EVENT_ID = UUID("01890000-0000-7000-8000-000000000002")


@pytest.fixture(params=KINDS)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    match request.param:
        case "absent":
            async with Bus(None, name="contract") as absent:
                yield absent
        case "away":
            async with Bus(f"nats://127.0.0.1:{free_port()}", name="contract") as away:
                yield away
        case _:
            async with nats_server() as server, Bus(server.url, name="contract") as there:
                async with asyncio.timeout(30):
                    await there.wait_connected()
                yield there


async def test_waking_takes_no_time_and_never_fails(bus: Bus) -> None:
    """Publishing is fire-and-forget: ten thousand wake-ups of as many runtimes neither block nor grow without bound."""
    for number in range(10_000):
        bus.wake(subjects.wake_runtime(UUID(int=number)))
    assert await asyncio.wait_for(asyncio.sleep(0, "the loop is free"), timeout=10) == "the loop is free"


async def test_the_state_is_one_that_health_can_show(bus: Bus, request: pytest.FixtureRequest) -> None:
    """Degraded, never dead: the three states name the three kinds."""
    wanted: dict[str, State] = {"absent": "absent", "away": "connecting", "there": "connected"}
    kind = next(kind for kind in KINDS if f"[{kind}]" in request.node.name)
    assert bus.state == wanted[kind]


async def test_a_loop_does_its_work_within_a_poll_whatever_the_bus(bus: Bus) -> None:
    """S1.2: every wait is wake-up or poll."""
    done = asyncio.Event()
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            done.set()

    loop = Loop("contract", step, poll_s=0.05)
    bus.on_wake(subjects.wake_dispatch, lambda _: loop.wake())
    loop.start()
    try:
        async with asyncio.timeout(20):
            await done.wait()
    finally:
        await loop.stop(1.0)
    assert steps >= 3


async def test_an_event_is_confirmed_or_refused_in_our_own_words(bus: Bus) -> None:
    """QW7: the relay learns at once that nothing was stored, and may try again later."""
    publisher = EventPublisher(bus, timeout_s=20)
    publish = publisher.publish(subjects.event_subject(UUID(int=1), "run.done"), b"{}", EVENT_ID)
    if bus.state == "connected":
        await publisher.ensure_stream()
        assert (await publish).stream_seq == 1
    else:
        with pytest.raises(BusUnavailable):
            await publisher.ensure_stream()
        with pytest.raises(BusUnavailable):
            await publish
