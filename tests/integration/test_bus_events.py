"""Run events on a real JetStream: stored once, refused loudly, back after a restart (S12.1, QW7, NA1, NA8)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from tests.support.nats import nats_server

from autopilot.bus.connection import Bus
from autopilot.bus.errors import BusRefused, BusUnavailable
from autopilot.bus.events import EventPublisher, PubAck
from autopilot.bus.stream import StreamLimits
from autopilot.bus.subjects import EVENT_STREAM, event_subject
from autopilot.kit.ids import uuid7

WORKSPACE = uuid7()
SUBJECT = event_subject(WORKSPACE, "run.started")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Bus]:
    async with Bus(url, name="a") as bus:
        async with asyncio.timeout(30):
            await bus.wait_connected()
        yield bus


def patient(bus: Bus, limits: StreamLimits | None = None) -> EventPublisher:
    """A publisher that waits for a server with little of a busy machine: what it says counts here, not how soon."""
    return EventPublisher(bus, limits=limits, timeout_s=20)


def jetstream(bus: Bus) -> JetStreamContext:
    assert bus.client is not None
    return bus.client.jetstream()


async def publish(publisher: EventPublisher, payload: bytes = b"{}", event_id: UUID | None = None) -> PubAck:
    await publisher.ensure_stream()
    return await publisher.publish(SUBJECT, payload, event_id or uuid7())


async def test_an_event_is_stored_once_however_often_it_is_published() -> None:
    """NA8: the answer tells a duplicate, and only the same event is one."""
    event_id = uuid7()
    async with nats_server() as server, connected(server.url) as bus:
        events = patient(bus)
        first, again = [await publish(events, event_id=event_id) for _ in range(2)]
        other = await publish(events)
        assert (first.stream_seq, first.duplicate) == (1, False)
        assert (again.stream_seq, again.duplicate) == (1, True)
        assert (other.stream_seq, other.duplicate) == (2, False)


async def test_a_changed_setting_changes_the_stream_and_nothing_else_of_it() -> None:
    """S12.1: made once, updated where it differs, by any number of processes; what an operator set beside it stays."""
    async with nats_server() as server, connected(server.url) as bus:
        small, large = StreamLimits(max_bytes=1_000_000, max_age_s=60.0), StreamLimits(max_bytes=2_000_000)
        await asyncio.gather(*(patient(bus, small).ensure_stream() for _ in range(4)))
        made = (await jetstream(bus).stream_info(EVENT_STREAM)).config
        assert (made.max_bytes, made.max_age, made.duplicate_window) == (1_000_000, 60, 60)
        assert (made.storage, made.discard) == (StorageType.FILE, DiscardPolicy.NEW)
        await jetstream(bus).update_stream(made.evolve(description="ours", discard=DiscardPolicy.OLD))
        await publish(patient(bus, small))
        await patient(bus, large).ensure_stream()
        changed = await jetstream(bus).stream_info(EVENT_STREAM)
        assert (changed.config.max_bytes, changed.config.duplicate_window) == (2_000_000, 120)
        assert (changed.config.discard, changed.config.description) == (DiscardPolicy.NEW, "ours")
        assert changed.state.messages == 1


async def test_a_change_that_the_server_refuses_does_not_stop_the_events() -> None:
    async with nats_server() as server, connected(server.url) as bus:
        await patient(bus).ensure_stream()
        events = patient(bus, StreamLimits(replicas=3))
        assert (await publish(events)).stream_seq == 1
        assert events.trouble is None


async def test_a_stream_that_cannot_be_made_is_unavailable_and_says_why() -> None:
    async with nats_server() as server, connected(server.url) as bus:
        events = patient(bus, StreamLimits(replicas=3))
        with pytest.raises(BusUnavailable, match="event stream cannot be made: replicas"):
            await events.ensure_stream()
        assert events.trouble is not None
        assert "replicas" in events.trouble


async def test_publishing_works_again_after_a_kill_and_the_stream_kept_its_events() -> None:
    """NA1: the process stays, the client is new."""
    async with nats_server() as server, connected(server.url) as bus:
        events = patient(bus)
        await publish(events)
        back = asyncio.Event()
        bus.on_connect(back.set)
        await server.stop(signal.SIGKILL)
        with pytest.raises(BusUnavailable):
            await publish(events)
        await server.start()
        async with asyncio.timeout(30):
            await back.wait()
        assert (await publish(events)).stream_seq == 2


async def test_a_stream_that_was_deleted_is_made_again_on_the_next_try() -> None:
    async with nats_server() as server, connected(server.url) as bus:
        events = patient(bus)
        await publish(events)
        await jetstream(bus).delete_stream(EVENT_STREAM)
        with pytest.raises(BusUnavailable):
            await publish(events)
        assert (await publish(events)).stream_seq == 1


async def test_a_server_without_jetstream_is_unavailable() -> None:
    """QW7."""
    async with nats_server(jetstream=False) as server, connected(server.url) as bus:
        with pytest.raises(BusUnavailable, match="event stream"):
            await publish(patient(bus))


async def test_a_full_stream_refuses_what_is_new_and_keeps_what_it_has() -> None:
    async with nats_server() as server, connected(server.url) as bus:
        events = patient(bus, StreamLimits(max_bytes=2_000))
        await publish(events, b"x" * 1000)
        with pytest.raises(BusUnavailable):
            await publish(events, b"x" * 1000)
        assert (await jetstream(bus).stream_info(EVENT_STREAM)).state.messages == 1


async def test_a_message_that_can_never_be_taken_is_refused_for_good() -> None:
    """By the server for its size, or by a limit that an operator gave the stream."""
    async with nats_server() as server, connected(server.url) as bus:
        subjects = ["autopilot.events.>"]
        await jetstream(bus).add_stream(StreamConfig(name=EVENT_STREAM, subjects=subjects, max_msg_size=500))
        for size in (2_000_000, 1000):
            with pytest.raises(BusRefused):
                await publish(patient(bus), b"x" * size)


@pytest.mark.parametrize("url", [None, "nats://127.0.0.1:1"], ids=["absent", "away"])
async def test_without_a_server_publishing_says_so_at_once(url: str | None) -> None:
    """It does not wait for as long as a server has to answer."""
    async with Bus(url, name="a") as bus, asyncio.timeout(15):
        with pytest.raises(BusUnavailable):
            await publish(patient(bus))
