"""A second writer that helps only where the first is slow (DESIGN §4, HAZARDS 11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autopilot.kit.batch import Coalescer


class Wire:
    """A flush that each batch leaves when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()

    async def flush(self, items: list[int]) -> Sequence[int]:
        self.batches.append(items)
        self.arrived.set()
        await self.go.wait()
        return items

    async def next_batch(self) -> None:
        self.arrived.clear()
        await self.arrived.wait()


async def test_items_gather_behind_a_writer_that_is_quick() -> None:
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=60.0)
    first = asyncio.create_task(coalescer.submit(1))
    await wire.next_batch()
    rest = [asyncio.create_task(coalescer.submit(n)) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    wire.go.set()
    assert await asyncio.gather(first, *rest) == [1, 2, 3, 4]
    assert wire.batches == [[1], [2, 3, 4]]


async def test_a_writer_that_is_stuck_is_passed() -> None:
    """HAZARDS 11: one item behind a lock stalls nobody, however patient."""
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=0.01)
    stuck = asyncio.create_task(coalescer.submit(1))
    await wire.next_batch()
    later = [asyncio.create_task(coalescer.submit(n)) for n in (2, 3)]
    await wire.next_batch()
    assert wire.batches == [[1], [2, 3]]
    wire.go.set()
    assert await asyncio.gather(stuck, *later) == [1, 2, 3]


async def test_a_full_batch_is_not_waited_for() -> None:
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=60.0, max_items=2)
    posts = [asyncio.create_task(coalescer.submit(1))]
    await wire.next_batch()
    posts += [asyncio.create_task(coalescer.submit(n)) for n in (2, 3)]
    await wire.next_batch()
    assert wire.batches == [[1], [2, 3]]
    wire.go.set()
    await asyncio.gather(*posts)


async def test_patience_begins_anew_with_each_item_that_gathers() -> None:
    """The timer of one gathering does not hurry the next."""
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=0.05, writers=3)
    posts = [asyncio.create_task(coalescer.submit(1))]
    await wire.next_batch()
    for number in (2, 3):
        posts.append(asyncio.create_task(coalescer.submit(number)))
        began = asyncio.get_running_loop().time()
        await wire.next_batch()
        assert asyncio.get_running_loop().time() - began >= 0.04
    wire.go.set()
    assert await asyncio.gather(*posts) == [1, 2, 3]
