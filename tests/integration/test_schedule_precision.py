"""How exactly occurrences and retries are admitted by a loop that would look but once a minute by itself (S7.9)."""

from __future__ import annotations

from tests.bench.support import percentile
from tests.support import rules
from tests.support.precision import Spread
from tests.support.scheduling import Scheduler

from autopilot.kit.loop import Loop
from autopilot.storage.database import Database

# For a machine that does other things, and stands still for seconds; measured idle it is a few milliseconds (make bench).
LAX_MS = 10_000.0


async def test_fifty_occurrences_and_retries_are_admitted_at_their_time(postgres_url: str) -> None:
    """S7.6, S7.9"""
    async with Database(postgres_url, name="test") as database:
        spread = Spread(database, await rules.make_setting(database), plans=40, retries=10)
        await spread.make()
        loop = Loop("schedule", Scheduler(database).step, poll_s=60)
        await spread.begin(after_s=0.5, every_s=0.05)
        loop.start()
        try:
            late_ms = await spread.lateness_ms(timeout_s=40)
        finally:
            await loop.stop()
    print(f"lateness p50 {percentile(late_ms, 0.5):.1f} ms, p99 {percentile(late_ms, 0.99):.1f} ms")
    assert len(late_ms) == 50
    assert min(late_ms) >= 0
    assert percentile(late_ms, 0.5) < LAX_MS
