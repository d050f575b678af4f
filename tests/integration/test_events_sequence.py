"""Run events get dense numbers in commit order; nobody reads past a place where one can still appear (S12.1, S12.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from tests.support import rules
from tests.support.dispatching import admit, assert_coherent, drain, execute, fetch, firing, worker

from autopilot.dispatcher.relay import LOW_WATER_EVERY_S, Sequencer
from autopilot.domain.events import EventKind
from autopilot.domain.ids import WorkspaceId
from autopilot.domain.states import ExecutionMode, RunStatus, Source
from autopilot.kit import metrics
from autopilot.kit.clock import SystemClock
from autopilot.kit.ids import uuid7
from autopilot.storage import events
from autopilot.storage.database import Conn, Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


class StepClock(SystemClock):
    """A clock that a test moves."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


async def tell(conn: Conn, workspace_id: WorkspaceId) -> None:
    await conn.execute(
        """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
           VALUES ($1, $2, $3, $4, 'run.done', '{"source": "api", "status": "completed"}')""",
        *(uuid7(), workspace_id, uuid7(), uuid7()),
    )


async def sequence(database: Database, limit: int = 100) -> int:
    async with database.connection() as conn:
        await events.open_heads(conn, limit)
    async with database.transaction() as conn:
        return (await events.sequence(conn, limit)).total()


async def seqs(database: Database, workspace_id: WorkspaceId) -> list[int]:
    async with database.connection() as conn:
        return [event.seq for event in await events.read_after(conn, workspace_id, 0, 1000)]


async def test_a_slow_committer_gets_a_later_number_and_is_never_skipped(
    postgres_url: str, database: Database
) -> None:
    """HAZARDS 1: the outbox id of the slow one is lower than that of the quick one."""
    workspace_id = WorkspaceId(uuid7())
    slow = await asyncpg.connect(postgres_url)
    quick = await asyncpg.connect(postgres_url)
    try:
        pending = slow.transaction()
        await pending.start()
        await tell(slow, workspace_id)
        await tell(quick, workspace_id)
        assert await sequence(database) == 1
        assert await seqs(database, workspace_id) == [1]
        await pending.commit()
        assert await sequence(database) == 1
        assert await seqs(database, workspace_id) == [1, 2]
        assert not await fetch(database, "SELECT 1 FROM run_event_outbox")
    finally:
        await slow.close()
        await quick.close()


async def test_a_sequencer_passes_by_what_another_one_works_on(postgres_url: str, database: Database) -> None:
    """HAZARDS 1: it waits for nothing, and no number is given twice."""
    here, there = WorkspaceId(uuid7()), WorkspaceId(uuid7())
    writer = await asyncpg.connect(postgres_url)
    try:
        for workspace_id in (here, here, there):
            await tell(writer, workspace_id)
        async with database.connection() as conn:
            await events.open_heads(conn, 100)
        async with database.transaction() as conn:
            assert (await events.sequence(conn, 2)).total() == 2
            await tell(writer, here)
            assert await sequence(database, 10) == 1
            assert await seqs(database, there) == [1]
            assert await seqs(database, here) == []
        while await sequence(database):
            pass
        assert await seqs(database, here) == [1, 2, 3]
        assert await seqs(database, there) == [1]
    finally:
        await writer.close()


async def test_numbers_are_dense_per_workspace_under_two_sequencers_and_many_writers(
    postgres_url: str, database: Database
) -> None:
    workspaces = [WorkspaceId(uuid7()) for _ in range(3)]
    writing = True

    async def write(each: WorkspaceId) -> None:
        conn = await asyncpg.connect(postgres_url)
        try:
            for _ in range(60):
                async with conn.transaction():
                    await tell(conn, each)
        finally:
            await conn.close()

    async def number() -> None:
        sequencer = Sequencer(database, batch=7, tell=lambda: None)
        while writing or await fetch(database, "SELECT 1 FROM run_event_outbox LIMIT 1"):
            await sequencer.step()

    sequencing = [asyncio.create_task(number()) for _ in range(2)]
    await asyncio.gather(*(write(each) for each in workspaces for _ in range(2)))
    writing = False
    await asyncio.gather(*sequencing)
    for each in workspaces:
        assert await seqs(database, each) == list(range(1, 121))


async def test_an_idle_sequencer_asks_one_question(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS 26: it looks several times a second, so an empty outbox must not cost a transaction."""
    taken: list[object] = []
    transact = Database.transact

    async def counted(self: Database, use_case: Callable[[Conn], Awaitable[int]]) -> int:
        taken.append(use_case)
        return await transact(self, use_case)

    monkeypatch.setattr(Database, "transact", counted)
    sequencer = Sequencer(database, batch=10, tell=lambda: None)
    assert await sequencer.step() is False
    assert taken == []
    async with database.transaction() as conn:
        await tell(conn, WorkspaceId(uuid7()))
    assert await sequencer.step() is False
    assert len(taken) == 1


@pytest.mark.timeout(180)
async def test_the_low_water_rises_under_a_held_snapshot_and_never_above_what_can_still_commit(
    postgres_url: str, database: Database
) -> None:
    """HAZARDS 1: a backup does not slow the numbering down; a start that commits late still comes before its end."""
    workspace_id, run_id = WorkspaceId(uuid7()), uuid7()
    backup, slow, quick = [await asyncpg.connect(postgres_url) for _ in range(3)]
    insert = """INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
                VALUES (gen_random_uuid(), $1, $2, $2, $3, '{"source": "api", "status": "running"}')"""
    clock = StepClock()
    sequencer = Sequencer(database, batch=10, tell=lambda: None, clock=clock)

    async def work(times: int) -> None:
        for _ in range(times):
            await tell(quick, workspace_id)
            clock.at += LOW_WATER_EVERY_S
            await sequencer.step()

    async def rise(above: int, events: int) -> int:
        """Work until the water is above; whoever else is at work on the server, as other tests are, keeps it down meanwhile."""
        async with asyncio.timeout(60):
            while sequencer.low_water.id <= above:
                for _ in range(events):
                    await tell(quick, workspace_id)
                await work(1)
                await asyncio.sleep(
                    0.05
                )  # what keeps it down may do so for long, and this backlog stays short
        return sequencer.low_water.id

    try:
        reading = backup.transaction(isolation="repeatable_read")
        await reading.start()
        await backup.fetchval("SELECT count(*) FROM run_event_outbox")
        risen = await rise(above=1, events=0)
        assert risen <= await quick.fetchval("SELECT last_value FROM run_event_outbox_id_seq")
        starting = slow.transaction()
        await starting.start()
        await slow.execute("CREATE TEMP TABLE it_has_its_number () ON COMMIT DROP")
        await work(1)
        await slow.execute(insert, workspace_id, run_id, "run.started")
        await work(5)
        assert sequencer.low_water.id < await quick.fetchval(
            "SELECT last_value - 5 FROM run_event_outbox_id_seq"
        )
        await starting.commit()
        await quick.execute(insert, workspace_id, run_id, "run.done")
        while await sequencer.step():
            pass
        async with database.connection() as conn:
            told = await events.read_after(conn, workspace_id, 0, 100)
        assert [event.kind for event in told if event.run_id == run_id] == ["run.started", "run.done"]
        for _ in range(40):
            await tell(quick, workspace_id)
        water = await rise(above=risen + 12, events=10)
        left = await quick.fetchval("SELECT min(id) FROM run_event_outbox")
        assert water < left, "it rises into a backlog, and not past it"
        while await sequencer.step():
            pass
        assert not await fetch(database, "SELECT 1 FROM run_event_outbox")
    finally:
        for conn in (backup, slow, quick):
            await conn.close()


def counted(status: str, reason: str) -> float:
    """How many runs of programs this process has counted so."""
    labels = {"source": "api", "status": status, "reason": reason}
    return metrics.registry.get_sample_value("autopilot_run_transitions_total", labels) or 0


async def test_a_run_tells_started_and_done_in_order(database: Database) -> None:
    """S2.5, S12.2: ids and facts, nothing else; each counted once, by its reason (OB1)."""
    setting = await rules.make_setting(database)
    autopilot = await rules.make_autopilot(database, setting, execution_mode=ExecutionMode.RUN_ONLY)
    one = firing(autopilot.id, payload=b'{"secret": "words"}')
    await admit(database, [one])
    await drain(worker(database))
    await execute(
        database,
        "UPDATE agent_task SET status = 'cancelled', finished_at = clock_timestamp() WHERE run_id = $1",
        one.run_id,
    )
    await execute(
        database,
        """UPDATE autopilot_run SET status = 'failed', reason_code = 'task_cancelled', failure_reason = 'cancelled',
                  completed_at = clock_timestamp() WHERE id = $1""",
        one.run_id,
    )
    kinds = [("running", "none"), ("failed", "task_cancelled")]
    before = [counted(*kind) for kind in kinds]
    assert not await Sequencer(database, batch=10, tell=lambda: None).step(), "there is no more"
    assert [counted(*kind) - was for kind, was in zip(kinds, before, strict=True)] == [1, 1]
    async with database.connection() as conn:
        started, done = await events.read_after(conn, setting.workspace_id, 0, 10)
        assert await events.read_after(conn, setting.workspace_id, 1, 10) == [done]
        head = await events.read_head(conn, setting.workspace_id)
        nothing = await events.read_head(conn, WorkspaceId(uuid7()))
    assert (started.kind, started.status, started.seq) == (EventKind.STARTED, RunStatus.RUNNING, 1)
    assert (done.kind, done.status, done.seq) == (EventKind.DONE, RunStatus.FAILED, 2)
    assert done.reason_code == "task_cancelled"
    assert started.run_id == done.run_id == one.run_id
    assert started.source is Source.API
    assert started.task_id is not None
    assert (head.first_seq, head.last_seq) == (1, 2)
    assert (nothing.first_seq, nothing.last_seq) == (1, 0)
    await assert_coherent(database)
