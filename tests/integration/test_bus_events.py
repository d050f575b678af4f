"""Run events on a real JetStream: stored once, refused loudly, back after a restart (S12.1, QW7, NA8)."""

from __future__ import annotations

import asyncio
import signal

import pytest
from nats.js.api import DiscardPolicy, StorageType
from tests.support.nats import nats_server

from autopilot.bus.connection import Bus
from autopilot.bus.errors import BusRefused, BusUnavailable
from autopilot.bus.events import EventPublisher, StreamLimits
from autopilot.bus.subjects import EVENT_STREAM, event_subject
from autopilot.kit.ids import uuid7

WORKSPACE = uuid7()
SUBJECT = event_subject(WORKSPACE, "run.started")


async def connected(bus: Bus) -> None:
    async with asyncio.timeout(10):
        await bus.wait_connected()


async def test_an_event_is_stored_once_however_often_it_is_published() -> None:
    event_id = uuid7()
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        events = EventPublisher(bus)
        await events.ensure_stream()
        first = await events.publish(SUBJECT, b"{}", event_id)
        again = await events.publish(SUBJECT, b"{}", event_id)
        other = await events.publish(SUBJECT, b"{}", uuid7())
        assert (first.stream_seq, first.duplicate) == (1, False)
        assert (again.stream_seq, again.duplicate) == (1, True)
        assert (other.stream_seq, other.duplicate) == (2, False)


async def test_the_stream_is_made_once_and_brought_up_to_date() -> None:
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        await EventPublisher(bus, limits=StreamLimits(max_bytes=1_000_000)).ensure_stream()
        await EventPublisher(bus, limits=StreamLimits(max_bytes=2_000_000)).ensure_stream()
        await EventPublisher(bus, limits=StreamLimits(max_bytes=2_000_000)).ensure_stream()
        assert bus.client is not None
        config = (await bus.client.jetstream().stream_info(EVENT_STREAM)).config
        assert (config.max_bytes, config.duplicate_window) == (2_000_000, 120)
        assert (config.storage, config.discard) == (StorageType.FILE, DiscardPolicy.NEW)


async def test_publishing_works_again_after_a_kill_and_the_stream_kept_its_events() -> None:
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        events = EventPublisher(bus)
        await events.publish(SUBJECT, b"{}", uuid7())
        await server.stop(signal.SIGKILL)
        with pytest.raises(BusUnavailable):
            await events.publish(SUBJECT, b"{}", uuid7())
        await server.start()
        await connected(bus)
        assert (await events.publish(SUBJECT, b"{}", uuid7())).stream_seq == 2


async def test_a_stream_that_was_deleted_is_made_again_on_the_next_try() -> None:
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        events = EventPublisher(bus)
        await events.publish(SUBJECT, b"{}", uuid7())
        assert bus.client is not None
        await bus.client.jetstream().delete_stream(EVENT_STREAM)
        with pytest.raises(BusUnavailable):
            await events.publish(SUBJECT, b"{}", uuid7())
        assert (await events.publish(SUBJECT, b"{}", uuid7())).stream_seq == 1


async def test_a_server_without_jetstream_is_unavailable() -> None:
    """QW7."""
    async with nats_server(jetstream=False) as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        with pytest.raises(BusUnavailable, match="event stream"):
            await EventPublisher(bus).publish(SUBJECT, b"{}", uuid7())


async def test_a_full_stream_refuses_what_is_new_and_keeps_what_it_has() -> None:
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        events = EventPublisher(bus, limits=StreamLimits(max_bytes=2_000))
        await events.publish(SUBJECT, b"x" * 1000, uuid7())
        with pytest.raises(BusUnavailable):
            await events.publish(SUBJECT, b"x" * 1000, uuid7())


async def test_a_message_that_can_never_be_taken_is_refused_for_good() -> None:
    async with nats_server() as server, Bus(server.url, name="a") as bus:
        await connected(bus)
        with pytest.raises(BusRefused):
            await EventPublisher(bus).publish(SUBJECT, b"x" * 2_000_000, uuid7())


@pytest.mark.parametrize("url", [None, "nats://127.0.0.1:1"], ids=["absent", "away"])
async def test_without_a_server_publishing_says_so_at_once(url: str | None) -> None:
    async with Bus(url, name="a") as bus, asyncio.timeout(0.5):
        with pytest.raises(BusUnavailable):
            await EventPublisher(bus).publish(SUBJECT, b"{}", uuid7())
