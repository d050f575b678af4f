"""Every query of every file fits the migrated schema."""

from __future__ import annotations

import asyncpg
import pytest

from autopilot.storage import queries


@pytest.mark.parametrize("aggregate", queries.aggregates())
async def test_every_query_can_be_prepared(postgres_url: str, aggregate: str) -> None:
    conn = await asyncpg.connect(postgres_url)
    faults = []
    for name, sql in queries.load(aggregate).items():
        try:
            await conn.prepare(sql)
        except asyncpg.PostgresError as error:
            faults.append(f"{name}: {error}")
    await conn.close()
    assert not faults


async def test_invariants_answer_with_subject_and_detail(postgres_url: str) -> None:
    conn = await asyncpg.connect(postgres_url)
    for name, sql in queries.load("invariants").items():
        columns = [(column.name, column.type.name) for column in (await conn.prepare(sql)).get_attributes()]
        assert columns == [("subject", "text"), ("detail", "text")], name
    await conn.close()
