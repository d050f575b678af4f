"""Run events numbered, and relayed to JetStream, a second: `python -m tests.bench.events`.

Beside them the same rows moved without numbers, heads or locks, and nats-py publishing as many messages by itself.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

from nats.js import JetStreamContext
from tests.bench.support import bench_database, print_ratio, truncate
from tests.support.nats import nats_server

from autopilot.bus.connection import Bus
from autopilot.bus.events import EventPublisher
from autopilot.bus.subjects import EVENT_STREAM, event_subject
from autopilot.dispatcher.relay import WINDOW, Relay, Sequencer
from autopilot.kit.ids import uuid7
from autopilot.storage.database import Database

RUNS = 5_000
ALONE = 1_000
WORKSPACES = 4
BATCH = 1000
ROUNDS = 3
_TELL = """
INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
SELECT gen_random_uuid(), w.ids[1 + r.place % array_length(w.ids, 1)], gen_random_uuid(), r.id, k.kind,
       jsonb_build_object('source', 'webhook', 'status', k.status, 'trigger_id', r.id, 'delivery_id', r.id, 'task_id', r.id)
  FROM (SELECT n AS place, gen_random_uuid() AS id FROM generate_series(1, $2) n) r
 CROSS JOIN (VALUES (1, 'run.started', 'running'), (2, 'run.done', 'completed')) AS k (place, kind, status)
 CROSS JOIN (SELECT $1::uuid[] AS ids) w
 ORDER BY r.place, k.place"""

_MOVE = """
WITH taken AS (
    DELETE FROM run_event_outbox WHERE id = ANY(ARRAY(SELECT id FROM run_event_outbox ORDER BY id LIMIT $1))
 RETURNING id, event_id, workspace_id, autopilot_id, run_id, kind, payload, occurred_at)
INSERT INTO moved (workspace_id, seq, event_id, autopilot_id, run_id, kind, payload, occurred_at)
SELECT workspace_id, id, event_id, autopilot_id, run_id, kind, payload, occurred_at FROM taken"""


async def _move(url: str, database: Database) -> float:
    """Move the same rows in as many transactions."""
    await truncate(url, "run_event_outbox", "moved")
    async with database.connection() as conn:
        await conn.execute(_TELL, [uuid7() for _ in range(WORKSPACES)], RUNS)
        began = time.perf_counter()
        while await conn.execute(_MOVE, BATCH) != "INSERT 0 0":
            pass
    return 2 * RUNS / (time.perf_counter() - began)


async def _sequence(url: str, database: Database) -> float:
    """Number the start and the end of so many runs: events a second."""
    await truncate(url, "run_event_outbox", "run_event", "event_head")
    async with database.connection() as conn:
        await conn.execute(_TELL, [uuid7() for _ in range(WORKSPACES)], RUNS)
    sequencer = Sequencer(database, batch=BATCH, tell=lambda: None)
    began = time.perf_counter()
    while await sequencer.step():
        pass
    seconds = time.perf_counter() - began
    async with database.connection() as conn:
        assert await conn.fetchval("SELECT sum(last_seq) FROM event_head") == 2 * RUNS
    return 2 * RUNS / seconds


async def _relay(database: Database, bus: Bus, stream: JetStreamContext) -> float:
    """Relay what `_sequence` has numbered."""
    publisher = EventPublisher(bus)
    await publisher.ensure_stream()
    await stream.purge_stream(EVENT_STREAM)
    relay = Relay(database, publisher, connected=lambda: True, batch=BATCH)
    began = time.perf_counter()
    while await relay.step():
        pass
    seconds = time.perf_counter() - began
    assert (await stream.stream_info(EVENT_STREAM)).state.messages == 2 * RUNS
    return 2 * RUNS / seconds


async def _plain(stream: JetStreamContext, count: int, window: int) -> float:
    """The same messages by the client library alone, so many on their way at once."""
    await stream.purge_stream(EVENT_STREAM)
    subject, payload = event_subject(uuid7(), "run.done"), b"x" * 480

    async def publish() -> None:
        headers = {"Nats-Msg-Id": str(uuid7())}
        await stream.publish(subject, payload, stream=EVENT_STREAM, headers=headers)

    began = time.perf_counter()
    for start in range(0, count, window):
        await asyncio.gather(*(publish() for _ in range(min(window, count - start))))
    return count / (time.perf_counter() - began)


async def measure() -> None:
    """Print three lines."""
    async with (
        bench_database() as url,
        nats_server() as server,
        Database(url, name="bench", max_size=6) as database,
        Bus(server.url, name="bench") as bus,
    ):
        await bus.wait_connected()
        assert bus.client is not None
        stream = bus.client.jetstream(timeout=5)
        async with database.connection() as conn:
            await conn.execute("CREATE TABLE moved (LIKE run_event INCLUDING ALL)")
        moved, numbered, ours, windowed, alone = [], [], [], [], []
        for _ in range(ROUNDS):
            moved.append(await _move(url, database))
            numbered.append(await _sequence(url, database))
            ours.append(await _relay(database, bus, stream))
            windowed.append(await _plain(stream, 2 * RUNS, WINDOW))
            alone.append(await _plain(stream, ALONE, 1))
    print_ratio("events numbered", numbered, moved, "events/s", "the same rows only moved:")
    library = f"nats-py {version('nats-py')} alone"
    print_ratio("events relayed", ours, windowed, "events/s", f"{library}, {WINDOW} at once:")
    print_ratio("events relayed", ours, alone, "events/s", f"{library}, one at a time:")


def main() -> None:
    """Run the benchmark."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
