"""The relay against real servers that are cut off, full, without JetStream, or lose their leader: nothing is lost (S12.1)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import nats
import pytest
from tests.support.dispatching import execute, fetch
from tests.support.nats import NatsServer, nats_cluster, nats_server
from tests.support.system import eventually
from tests.support.tcp_proxy import tcp_proxy

from autopilot.bus.connection import Bus
from autopilot.bus.events import EventPublisher, PubAck
from autopilot.bus.stream import StreamLimits
from autopilot.bus.subjects import EVENT_STREAM
from autopilot.dispatcher.relay import WINDOW, WORKSPACES, Relay, Sequencer
from autopilot.domain.ids import WorkspaceId
from autopilot.kit.ids import uuid7
from autopilot.kit.loop import Loop
from autopilot.storage.database import Database

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


async def tell(database: Database, workspace_id: WorkspaceId, runs: int) -> None:
    """The events of so many runs: each starts, and ends right after."""
    await execute(
        database,
        """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
           SELECT gen_random_uuid(), $1, $2, r.id, k.kind, jsonb_build_object('source', 'api', 'status', k.status)
             FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $3)) r
            CROSS JOIN (VALUES (1, 'run.started', 'running'), (2, 'run.done', 'completed')) AS k (place, kind, status)
            ORDER BY r.id, k.place""",
        *(workspace_id, uuid7(), runs),
    )


class Counted(EventPublisher):
    """A publisher that knows how many events were ever on their way at the same time."""

    on_the_way = most = repeats = 0

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        self.on_the_way += 1
        self.most = max(self.most, self.on_the_way)
        try:
            ack = await super().publish(subject, payload, event_id)
            self.repeats += ack.duplicate
            return ack
        finally:
            self.on_the_way -= 1


@asynccontextmanager
async def relaying(
    database: Database, url: str, limits: StreamLimits | None = None
) -> AsyncIterator[Counted]:
    """Sequencer and relay as the dispatcher runs them."""
    async with Bus(url, name="test") as bus:
        publisher = Counted(bus, limits=limits, timeout_s=1.0)
        relay = Relay(database, publisher, connected=lambda: bus.client is not None, batch=1000)
        loop = Loop("relay", relay.step, poll_s=0.2)
        sequencing = Loop("sequencer", Sequencer(database, batch=1000, tell=loop.wake).step, poll_s=0.1)
        bus.on_connect(loop.retry_now)
        loop.start()
        sequencing.start()
        try:
            yield publisher
        finally:
            await sequencing.stop(1.0)
            await loop.stop(0.0)


async def all_confirmed(database: Database, events: int) -> None:
    """Until so many events are numbered and confirmed."""

    async def look() -> bool:
        heads = await fetch(database, "SELECT last_seq, relayed_seq FROM event_head")
        return [(head["last_seq"], head["relayed_seq"]) for head in heads] == [(events, events)]

    await eventually(look, f"{events} events confirmed", within_s=45)


async def relayed_seq(database: Database) -> int:
    [head] = await fetch(database, "SELECT relayed_seq FROM event_head")
    return int(head["relayed_seq"])


async def trouble(publisher: EventPublisher) -> str:
    """Why the relay is stuck, once it is."""

    async def look() -> str | None:
        return publisher.trouble

    return await eventually(look, "the relay is stuck")


async def assert_stream_has_all(database: Database, url: str) -> None:
    """Every event is in the stream, and no run's end stands before its start."""
    told: list[dict[str, Any]] = []
    client = await nats.connect(url)
    try:
        stream = client.jetstream(timeout=2)
        async with asyncio.timeout(60):
            while not told:  # a cluster that lost a server is silent until it has elected another leader
                with suppress(nats.errors.Error):
                    reading = await stream.subscribe("autopilot.events.>", ordered_consumer=True)
                    held = (await stream.stream_info(EVENT_STREAM)).state.messages
                    told = [json.loads((await reading.next_msg(5)).data) for _ in range(held)]
    finally:
        await client.close()
    kept = await fetch(database, "SELECT event_id FROM run_event")
    assert {event["event_id"] for event in told} == {str(row["event_id"]) for row in kept}
    started = set()
    for event in told:
        assert event["kind"] == "run.started" or event["run_id"] in started
        started.add(event["run_id"])


async def test_a_relay_that_was_cut_off_catches_up_and_kept_little_in_hand(database: Database) -> None:
    """NA1, NA8, HAZARDS 18: a network that keeps the connection and forwards nothing, then one that breaks it."""
    workspace_id = WorkspaceId(uuid7())
    async with nats_server() as server, tcp_proxy(server.url) as proxy:
        async with relaying(database, proxy.url) as publisher:
            await tell(database, workspace_id, 500)
            await all_confirmed(database, 1000)
            proxy.silence()
            await tell(database, workspace_id, 1500)
            await trouble(publisher)
            proxy.resume()
            await all_confirmed(database, 4000)
            assert publisher.repeats > 0, "what went through late was recognised when it was published again"
            await proxy.down()
            await tell(database, workspace_id, 500)
            await proxy.up()
            await all_confirmed(database, 5000)
            assert publisher.most <= WINDOW * WORKSPACES
            assert publisher.on_the_way == 0
        await assert_stream_has_all(database, server.url)


async def test_a_full_stream_and_a_server_without_jetstream_lose_nothing(database: Database) -> None:
    """QW7: discard new; a larger limit, which is a setting, makes room; events wait in Postgres meanwhile."""
    workspace_id = WorkspaceId(uuid7())
    async with nats_server() as server:
        async with relaying(database, server.url, StreamLimits(max_bytes=100_000)) as publisher:
            await tell(database, workspace_id, 400)
            assert "maximum bytes" in await trouble(publisher)
            relayed = await eventually(lambda: relayed_seq(database), "what the stream took is noted")
        assert relayed < 800
        await server.stop()

        async with nats_server(server.port, jetstream=False), relaying(database, server.url) as publisher:
            assert "JetStream" in await trouble(publisher)

        await server.start()
        async with relaying(database, server.url):
            await all_confirmed(database, 800)
        await assert_stream_has_all(database, server.url)


async def test_a_cluster_keeps_the_events_when_the_streams_leader_is_killed(database: Database) -> None:
    """S12.1: three servers hold the stream; one may go, and the relay finds another from its list."""
    workspace_id = WorkspaceId(uuid7())
    async with nats_cluster(3) as servers:
        url = ",".join(server.url for server in servers)
        async with relaying(database, url, StreamLimits(replicas=3)):
            await tell(database, workspace_id, 300)
            await all_confirmed(database, 600)
            killed = servers.pop(await leader(servers))
            await killed.stop(signal.SIGKILL)
            await tell(database, workspace_id, 300)
            await all_confirmed(database, 1200)
        await assert_stream_has_all(database, servers[0].url)


async def leader(servers: list[NatsServer]) -> int:
    """Which of the servers leads the stream."""
    client = await nats.connect(servers[0].url)
    try:
        info = await client.jetstream().stream_info(EVENT_STREAM)
        assert info.cluster is not None
        assert info.config.num_replicas == 3
        assert info.cluster.leader is not None
        return int(info.cluster.leader.removeprefix("n"))
    finally:
        with suppress(nats.errors.Error):
            await client.close()
