"""The relay: every event reaches the stream at least once, each run's in order, through restarts and rivals (S12.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest
from tests.support.dispatching import execute, fetch

from autopilot.bus.errors import BusRefused, BusUnavailable
from autopilot.bus.events import PubAck
from autopilot.dispatcher import flush
from autopilot.dispatcher.relay import WINDOW, WORKSPACES, Relay, Sequencer
from autopilot.domain.events import RunEvent
from autopilot.domain.ids import LeaseToken, WorkspaceId
from autopilot.kit import points
from autopilot.kit.ids import random_token, uuid7
from autopilot.storage import events
from autopilot.storage.database import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


async def make_events(database: Database, workspace_id: WorkspaceId, runs: int) -> list[UUID]:
    """Numbered events of so many runs: all start, then all end; the ids of their events in order."""
    run_ids = [uuid7() for _ in range(runs)]
    for kind, status in (("run.started", "running"), ("run.done", "completed")):
        await execute(
            database,
            """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
               SELECT gen_random_uuid(), $1, $2, x.id, $4, jsonb_build_object('source', 'api', 'status', $5::text)
                 FROM unnest($3::uuid[]) WITH ORDINALITY AS x (id, place) ORDER BY x.place""",
            *(workspace_id, uuid7(), run_ids, kind, status),
        )
    async with database.connection() as conn:
        await events.open_heads(conn, 10_000)
    async with database.transaction() as conn:
        await events.sequence(conn, 10_000)
        return [event.event_id for event in await events.read_after(conn, workspace_id, 0, 10_000)]


async def relayed_seq(database: Database, workspace_id: WorkspaceId) -> int:
    [head] = await fetch(database, "SELECT relayed_seq FROM event_head WHERE workspace_id = $1", workspace_id)
    return int(head["relayed_seq"])


class Sink:
    """A stream that remembers, and fails when told to."""

    def __init__(self) -> None:
        self.stored: list[RunEvent] = []
        self.refused: set[UUID] = set()
        self.down_after: int | None = None

    async def ensure_stream(self) -> None:
        pass

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        await asyncio.sleep(0)
        if self.down_after is not None and len(self.stored) >= self.down_after:
            raise BusUnavailable
        if event_id in self.refused:
            raise BusRefused
        event = msgspec.json.decode(payload, type=RunEvent)
        assert event.event_id == event_id
        assert subject == f"autopilot.events.{event.workspace_id}.{event.kind}"
        self.stored.append(event)
        return PubAck(stream_seq=len(self.stored), duplicate=False)


def relay(database: Database, sink: Sink, *, connected: bool = True) -> Relay:
    return Relay(database, sink, connected=lambda: connected, batch=1000)


async def test_events_of_several_workspaces_are_relayed_once_and_the_leases_let_go(
    database: Database,
) -> None:
    first, second = WorkspaceId(uuid7()), WorkspaceId(uuid7())
    expected = {each: await make_events(database, each, 100) for each in (first, second)}
    sink = Sink()
    assert await relay(database, sink).step()
    for each, ids in expected.items():
        assert sorted(ids) == sorted(event.event_id for event in sink.stored if event.workspace_id == each)
        assert await relayed_seq(database, each) == 200
    assert not await fetch(database, "SELECT 1 FROM event_head WHERE relay_token IS NOT NULL")
    assert not await relay(database, sink).step()


async def tell_one(database: Database, workspace_id: WorkspaceId) -> None:
    await execute(
        database,
        """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
           VALUES (gen_random_uuid(), $1, $1, gen_random_uuid(), 'run.done', '{"source": "api", "status": "completed"}')""",
        workspace_id,
    )


@pytest.mark.parametrize("down", [False, True], ids=["stream up", "stream down"])
async def test_a_dispatcher_that_ends_publishes_what_it_told_last(
    database: Database, down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: or leaves it in Postgres, and ends all the same."""
    monkeypatch.setattr(flush, "FLUSH_WITHIN_S", 30.0)
    workspace_id = WorkspaceId(uuid7())
    sink = Sink()
    sink.down_after = 0 if down else None
    async with flush.flushing(Sequencer(database, batch=10, tell=lambda: None), relay(database, sink)):
        await tell_one(database, workspace_id)
    assert len(sink.stored) == (0 if down else 1)
    assert await relayed_seq(database, workspace_id) == len(sink.stored)


async def test_what_was_not_confirmed_is_published_again_and_done_never_before_started(
    database: Database,
) -> None:
    """HAZARDS 18"""
    workspace_id = WorkspaceId(uuid7())
    ids = await make_events(database, workspace_id, 70)
    sink = Sink()
    one = relay(database, sink)
    for limit in (10, 90, 130):
        sink.down_after = limit
        with pytest.raises(BusUnavailable):
            await one.step()
    sink.down_after = None
    await one.step()
    assert {event.event_id for event in sink.stored} == set(ids)
    told: set[UUID] = set()
    for event in sink.stored:
        assert event.kind == "run.started" or event.run_id in told
        told.add(event.run_id)
    assert await relayed_seq(database, workspace_id) == 140


async def test_an_event_refused_for_ever_does_not_hold_up_the_rest(database: Database) -> None:
    workspace_id = WorkspaceId(uuid7())
    ids = await make_events(database, workspace_id, 3)
    sink = Sink()
    sink.refused = {ids[1]}
    await relay(database, sink).step()
    assert [event.event_id for event in sink.stored] == [ids[0], *ids[2:]]
    assert await relayed_seq(database, workspace_id) == 6


async def test_without_nats_nothing_is_leased_and_nothing_lost(database: Database) -> None:
    """S1.2"""
    workspace_id = WorkspaceId(uuid7())
    await make_events(database, workspace_id, 1)
    assert not await relay(database, Sink(), connected=False).step()
    assert await relayed_seq(database, workspace_id) == 0


async def test_a_relay_whose_lease_was_taken_stops_and_moves_nothing(database: Database) -> None:
    """HAZARDS 18: one relay a workspace."""
    workspace_id = WorkspaceId(uuid7())
    await make_events(database, workspace_id, 200)
    sink = Sink()
    with points.armed("dispatcher.after_publish", "block", on_hit=1) as published:
        late = asyncio.create_task(relay(database, sink).step())
        await published.wait_reached()
        assert not await relay(database, Sink()).step(), "a workspace under lease is nobody else's"
        await execute(database, "UPDATE event_head SET relay_until = clock_timestamp() - interval '1 s'")
        rival = LeaseToken(random_token())
        async with database.connection() as conn:
            assert len(await events.lease_relays(conn, rival, after=UUID(int=0), lease_s=30, limit=5)) == 1
        published.release()
        await late
    assert len(sink.stored) == WINDOW
    assert await relayed_seq(database, workspace_id) == 0
    [head] = await fetch(database, "SELECT relay_token FROM event_head")
    assert head["relay_token"] == rival


async def test_what_is_confirmed_before_an_error_is_not_published_again(database: Database) -> None:
    """Outside of the stream's two minutes every repeat is a duplicate for subscribers."""
    workspace_id = WorkspaceId(uuid7())
    await make_events(database, workspace_id, 50)
    sink = Sink()
    sink.down_after = 40
    with pytest.raises(BusUnavailable):
        await relay(database, sink).step()
    assert await relayed_seq(database, workspace_id) == 40
    sink.down_after = None
    await relay(database, sink).step()
    assert sorted(event.seq for event in sink.stored) == list(range(1, 101))


async def test_workspaces_come_by_turns(database: Database) -> None:
    """One that always has events, or always fails, does not hold up those behind it."""
    busy = [WorkspaceId(uuid7()) for _ in range(WORKSPACES + 2)]
    for each in busy:
        await make_events(database, each, 2)
    one = Relay(database, Sink(), connected=lambda: True, batch=1)
    await one.step()
    assert [await relayed_seq(database, each) for each in busy] == [1] * WORKSPACES + [0, 0]
    assert await one.step()
    assert [await relayed_seq(database, each) for each in busy] == [1] * (WORKSPACES + 2)
    while await one.step():
        pass
    assert {await relayed_seq(database, each) for each in busy} == {4}


async def test_a_gap_in_the_numbers_is_passed(database: Database) -> None:
    """Events that retention removed before any stream took them are told by nobody, and hold up nothing."""
    workspace_id = WorkspaceId(uuid7())
    await make_events(database, workspace_id, 2)
    await execute(database, "DELETE FROM run_event WHERE seq <= 2")
    sink = Sink()
    await relay(database, sink).step()
    assert [event.seq for event in sink.stored] == [3, 4]
    assert await relayed_seq(database, workspace_id) == 4
