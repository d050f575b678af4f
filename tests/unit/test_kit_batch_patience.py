"""Writers that take turns, and pass one that is slow (DESIGN §4, HAZARDS 11)."""

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
    posts = [asyncio.create_task(coalescer.submit(n)) for n in (0, 1)]
    await wire.next_batch()
    for number in (2, 3):
        posts.append(asyncio.create_task(coalescer.submit(number)))
        began = asyncio.get_running_loop().time()
        await wire.next_batch()
        assert asyncio.get_running_loop().time() - began >= 0.04
    wire.go.set()
    assert await asyncio.gather(*posts) == [0, 1, 2, 3]


async def test_writers_take_turns_with_batches_of_one_size() -> None:
    """While one batch is made durable the next is written; a third waits for a writer, not for time."""
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=60.0)
    posts = [asyncio.create_task(coalescer.submit(n)) for n in (1, 2, 3)]
    await wire.next_batch()
    posts += [asyncio.create_task(coalescer.submit(n)) for n in (4, 5)]
    await asyncio.sleep(0)
    assert (wire.batches, coalescer.pending) == ([[1, 2, 3]], 2)
    posts.append(asyncio.create_task(coalescer.submit(6)))
    await wire.next_batch()
    posts += [asyncio.create_task(coalescer.submit(n)) for n in (7, 8, 9)]
    await asyncio.sleep(0)
    assert (wire.batches, coalescer.pending) == ([[1, 2, 3], [4, 5, 6]], 3)
    wire.go.set()
    assert await asyncio.gather(*posts) == [*range(1, 10)]
    assert wire.batches == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


async def test_closing_does_not_wait_for_patience() -> None:
    wire = Wire()
    coalescer = Coalescer(wire.flush, patience_s=60.0)
    posts = [asyncio.create_task(coalescer.submit(n)) for n in (1, 2)]
    await wire.next_batch()
    posts.append(asyncio.create_task(coalescer.submit(3)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(coalescer.close())
    await wire.next_batch()
    wire.go.set()
    await closing
    assert await asyncio.gather(*posts) == [1, 2, 3]
