"""A page of the list of 10,000 rules, whose newest have run 3,000 times each or once: `python -m tests.bench.rules_list`.

The whole request over HTTP, by the real application in this process; the two databases are asked turn about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
from tests.bench.crowd import make_crowd
from tests.bench.support import bench_database, print_ratio
from tests.support.api import Client, running_api

from autopilot.domain.permissions import TokenKind
from autopilot.kit import log

RULES = 10_000
PAGE = 100
RUNS = 3_000
ROUNDS = 200

_RUNS = """
    INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, execution_mode, rule_version_id, rule_version,
           reason_code, failure_reason, completed_at, originator_id, accountable_id, attribution_source)
    SELECT uuid7_floor(now() - make_interval(secs => n)), a.workspace_id, a.id, 'manual', 'skipped', 'create_issue', a.version_id, 1,
           'runtime_offline', 'told', now(), a.creator_id, a.creator_id, 'direct_human'
      FROM (SELECT *, row_number() OVER (ORDER BY id DESC) AS place FROM autopilot) a,
           generate_series(1, CASE WHEN a.place <= $1 THEN $2 ELSE 1 END) each,
           LATERAL (SELECT a.place * 10000 + each AS n) numbered"""


async def _side(stack: AsyncExitStack, runs: int) -> Callable[[], Awaitable[float]]:
    url = await stack.enter_async_context(bench_database())
    api = await stack.enter_async_context(running_api(url))
    setting = await make_crowd(url, api.database, rules=RULES, each=1)
    conn = await asyncpg.connect(url)
    try:
        await conn.execute("SET session_replication_role = replica")
        await conn.execute(_RUNS, PAGE, runs)
        await conn.execute("VACUUM ANALYZE")
    finally:
        await conn.close()
    owner = api.client(await api.token(TokenKind.PERSONAL, setting.owner_id), "acme")
    return lambda: _page_ms(owner)


async def _page_ms(owner: Client) -> float:
    began = time.perf_counter()
    answer = await owner("GET", f"/api/autopilots?limit={PAGE}")
    assert len(answer.body["items"]) == PAGE
    return (time.perf_counter() - began) * 1000


async def measure() -> None:
    log.configure("bench", "warning")
    async with AsyncExitStack() as stack:
        many, few = await _side(stack, RUNS), await _side(stack, 1)
        for _ in range(20):
            await many(), await few()
        pairs = [(await many(), await few()) for _ in range(ROUNDS)]
    print_ratio(
        f"a page of {PAGE} of {RULES:,} rules, with {RUNS:,} runs each",
        [a for a, _ in pairs],
        [b for _, b in pairs],
        "ms",
        "with one run each",
    )


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()
