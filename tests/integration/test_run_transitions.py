"""The database follows the one drawing of a run's states, whoever writes to it (S2)."""

from __future__ import annotations

import itertools
import json
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
        await _telling_ms(conn, 1)
        tries = [[await _telling_ms(conn, count) for count in (100, 2000)] for _ in range(5)]
    finally:
        await conn.close()
    some, many = (min(times) for times in zip(*tries, strict=True))
    assert many < 5 * 20 * some, "to compare each with all others takes hundreds of times as long"


async def _telling_ms(conn: asyncpg.Connection[asyncpg.Record], count: int) -> float:
    """What the database takes to tell that so many runs have started at once."""
    started = await conn.fetch(
        f"INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, rule_version_id, rule_version,"
        f" accountable_id, attribution_source, {_COLUMNS})"
        f" SELECT gen_random_uuid(), $1, $1, 'api', 'pending', $1, 1, $1, 'rule_owner', {_look(RunStatus.PENDING)}"
        f"   FROM generate_series(1, $2) RETURNING id",
        *(uuid4(), count),
    )
    plan = await conn.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) UPDATE autopilot_run"
        f" SET (status, {_COLUMNS}) = (SELECT 'running', {_look(RunStatus.RUNNING)}) WHERE id = ANY($1::uuid[])",
        [run["id"] for run in started],
    )
    [told] = json.loads(plan)[0]["Triggers"]
    assert told["Trigger Name"] == "autopilot_run_tell_update"
    return float(told["Time"])
