"""The database follows the one drawing of a run's states, whoever writes to it (S2)."""

from __future__ import annotations

import asyncio
import itertools
import re
from uuid import uuid4

import asyncpg
import pytest

from autopilot.domain.states import RUN_NEXT, RunStatus

# What a run of each state looks like, so that only the way into it can be refused.
_LOOKS: dict[RunStatus, str] = {
    RunStatus.PENDING: "'create_issue', NULL, NULL, NULL, NULL, NULL, NULL",
    RunStatus.ISSUE_CREATED: "'create_issue', gen_random_uuid(), gen_random_uuid(), now(), NULL, NULL, NULL",
    RunStatus.RUNNING: "'run_only', NULL, gen_random_uuid(), now(), NULL, NULL, NULL",
    RunStatus.COMPLETED: "'run_only', NULL, gen_random_uuid(), now(), now(), NULL, NULL",
    RunStatus.FAILED: "'run_only', NULL, gen_random_uuid(), now(), now(), 'task_failed', 'it failed'",
    RunStatus.SKIPPED: "'run_only', NULL, NULL, NULL, now(), 'runtime_offline', 'it was offline'",
}
_COLUMNS = "execution_mode, issue_id, task_id, started_at, completed_at, reason_code, failure_reason"


def _look(status: RunStatus) -> str:
    types = ("text", "uuid", "uuid", "timestamptz", "timestamptz", "text", "text")
    return ", ".join(
        f"{value}::{type_}" for value, type_ in zip(_LOOKS[status].split(", "), types, strict=True)
    )


async def _changes(conn: asyncpg.Connection[asyncpg.Record], before: RunStatus, after: RunStatus) -> bool:
    run_id = uuid4()
    await conn.execute(
        f"INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, rule_version_id, rule_version,"
        f" accountable_id, attribution_source, {_COLUMNS})"
        f" SELECT $1, $1, $1, 'api', $2, $1, 1, $1, 'rule_owner', {_look(before)}",
        *(run_id, before.value),
    )
    try:
        await conn.execute(
            f"UPDATE autopilot_run SET (status, {_COLUMNS}) = (SELECT $2, {_look(after)}) WHERE id = $1",
            *(run_id, after.value),
        )
    except asyncpg.IntegrityConstraintViolationError as error:
        if error.constraint_name != "autopilot_run_transition":
            raise
        return False
    return True


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(RunStatus, 2)))
async def test_the_database_lets_a_run_go_where_the_drawing_says_and_nowhere_else(
    postgres_url: str, before: RunStatus, after: RunStatus
) -> None:
    """S2.1: also a started run that would be skipped, or one that would go back."""
    conn = await asyncpg.connect(postgres_url)
    try:
        assert await _changes(conn, before, after) is (after in RUN_NEXT[before])
    finally:
        await conn.close()


async def test_telling_a_batch_takes_time_by_its_size_whatever_came_before(postgres_url: str) -> None:
    """S2.5: a connection that began with a single run does not compare each run of a batch with all others of it."""
    conn = await asyncpg.connect(postgres_url)
    try:
        await _starting_s(conn, 1)
        tries = [[await _starting_s(conn, count) for count in (100, 2000)] for _ in range(2)]
        assert await conn.fetchval("SELECT count(*) FROM run_event_outbox") == 1 + 2 * 2100
    finally:
        await conn.close()
    some, many = (min(times) for times in zip(*tries, strict=True))
    assert many < 3 * 20 * some, "where each is compared with all others, it is hundreds of times as much"


async def _starting_s(conn: asyncpg.Connection[asyncpg.Record], count: int) -> float:
    """The time of its processor that the database takes to start so many runs at once and to tell of it."""
    started = await conn.fetch(
        f"INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, rule_version_id, rule_version,"
        f" accountable_id, attribution_source, {_COLUMNS})"
        f" SELECT gen_random_uuid(), $1, $1, 'api', 'pending', $1, 1, $1, 'rule_owner', {_look(RunStatus.PENDING)}"
        f"   FROM generate_series(1, $2) RETURNING id",
        *(uuid4(), count),
    )
    usage: asyncio.Queue[asyncpg.PostgresLogMessage] = asyncio.Queue()

    def note(_conn: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.message.startswith("EXECUTE MESSAGE"):
            usage.put_nowait(message)

    conn.add_log_listener(note)
    async with conn.transaction():
        await conn.execute("SET LOCAL client_min_messages = log; SET LOCAL log_statement_stats = on")
        await conn.execute(
            f"UPDATE autopilot_run SET (status, {_COLUMNS}) = (SELECT 'running', {_look(RunStatus.RUNNING)})"
            f" WHERE id = ANY($1::uuid[])",
            [run["id"] for run in started],
        )
    told = await asyncio.wait_for(usage.get(), 20)
    conn.remove_log_listener(note)
    assert told.detail is not None
    of_the_statement, _, _of_the_session = told.detail.partition("[")
    return sum(map(float, re.findall(r"([\d.]+) s (?:user|system)", of_the_statement)))
