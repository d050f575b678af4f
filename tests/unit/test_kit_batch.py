"""Coalescing: nothing waits on an idle system, batches gather behind the wire, one bad item harms nobody (DESIGN §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log
from autopilot.kit.batch import Coalescer, CoalescerClosed, QueueFull


class Down(InfrastructureError):
    """Not there."""


class Wire:
    """A flush that a test can hold back, and that doubles every number."""

    def __init__(self, *, open_: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.fail_on: dict[int, Exception] = {}
        self.down = 0
        if open_:
            self.open.set()

    async def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        self.started.set()
        await self.open.wait()
        if self.down:
            self.down -= 1
            raise Down
        for item in items:
            if item in self.fail_on:
                raise self.fail_on[item]
        return [item * 2 for item in items]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def submit_all(batch: Coalescer[int, int], items: Sequence[int]) -> list[int | BaseException]:
    return await asyncio.gather(*(batch.submit(item) for item in items), return_exceptions=True)


async def test_a_lone_item_is_written_at_once() -> None:
    wire = Wire()
    async with Coalescer(wire) as batch:
        assert await batch.submit(21) == 42
    assert wire.batches == [[21]]


async def test_while_one_batch_is_on_the_wire_the_next_gathers() -> None:
    wire = Wire(open_=False)
    async with Coalescer(wire, writers=1) as batch:
        first = asyncio.create_task(batch.submit(1))
        await wire.started.wait()
        rest = [asyncio.create_task(batch.submit(item)) for item in range(2, 100)]
        await settle()
        assert wire.batches == [[1]]
        assert batch.pending == 98
        wire.open.set()
        assert await first == 2
        assert await asyncio.gather(*rest) == [item * 2 for item in range(2, 100)]
    assert [len(items) for items in wire.batches] == [1, 98]


async def test_a_second_writer_passes_a_stuck_one() -> None:
    """HAZARDS 11: one lock must not stall everybody."""
    stuck = asyncio.Event()

    async def flush(items: list[int]) -> list[int]:
        if 1 in items:
            await stuck.wait()
        return items

    async with Coalescer(flush, writers=2) as batch:
        first = asyncio.create_task(batch.submit(1))
        await settle()
        assert await batch.submit(2) == 2
        assert not first.done()
        stuck.set()
        assert await first == 1


async def test_items_are_sorted_by_key_and_each_gets_its_own_answer() -> None:
    wire = Wire()
    async with Coalescer(wire, key=lambda item: item) as batch:
        assert await submit_all(batch, [5, 3, 9, 1]) == [10, 6, 18, 2]
    assert wire.batches == [[1, 3, 5, 9]]


async def test_batches_are_bounded_by_items_and_by_bytes() -> None:
    wire = Wire()
    async with Coalescer(wire, max_items=4, writers=1) as batch:
        await submit_all(batch, range(10))
    assert [len(items) for items in wire.batches] == [4, 4, 2]
    wire = Wire()
    async with Coalescer(wire, max_bytes=100, size=lambda item: item, writers=1) as batch:
        await submit_all(batch, [60, 40, 1, 500, 99])
    assert wire.batches == [[60, 40], [1], [500], [99]]


async def test_beyond_the_gathering_queue_submitting_fails_at_once() -> None:
    """S9.16."""
    wire = Wire(open_=False)
    async with Coalescer(wire, max_pending=3, writers=1) as batch:
        taken = [asyncio.create_task(batch.submit(0))]
        await wire.started.wait()
        taken += [asyncio.create_task(batch.submit(item)) for item in (1, 2, 3)]
        await settle()
        with pytest.raises(QueueFull):
            await batch.submit(4)
        wire.open.set()
        assert await asyncio.gather(*taken) == [0, 2, 4, 6]


async def test_what_waits_is_bounded_in_bytes_as_well() -> None:
    """Ten thousand bodies of 256 KiB would be more than a process may have; what has been written makes room."""
    wire = Wire(open_=False)
    async with Coalescer(wire, max_pending_bytes=100, size=lambda item: item, writers=1) as batch:
        taken = [asyncio.create_task(batch.submit(70))]
        await wire.started.wait()
        taken += [asyncio.create_task(batch.submit(item)) for item in (60, 50)]
        await settle()
        with pytest.raises(QueueFull):
            await batch.submit(1)
        taken[1].cancel()
        wire.open.set()
        assert [await taken[0], await taken[2]] == [140, 100]
        assert await submit_all(batch, [99, 100]) == [198, 200]


async def test_a_poisonous_item_fails_alone() -> None:
    wire = Wire()
    wire.fail_on = {37: ValueError("poison")}
    async with Coalescer(wire, writers=1) as batch:
        answers = await submit_all(batch, range(100))
    assert [item for item, answer in enumerate(answers) if isinstance(answer, Exception)] == [37]
    assert isinstance(answers[37], ValueError)
    assert [answer for item, answer in enumerate(answers) if item != 37] == [
        item * 2 for item in range(100) if item != 37
    ]
    assert len(wire.batches) <= 2 * 7 + 1


async def test_an_exception_among_the_results_goes_to_its_item() -> None:
    async def flush(items: list[int]) -> list[int | Exception]:
        return [ValueError("odd") if item % 2 else item for item in items]

    async with Coalescer(flush) as batch:
        answers = await submit_all(batch, [1, 2])
    assert isinstance(answers[0], ValueError)
    assert answers[1] == 2


async def test_an_outage_is_not_split_and_fails_the_whole_batch() -> None:
    """S10.2: infrastructure says nothing about the items."""
    wire = Wire()
    wire.down = 1
    async with Coalescer(wire) as batch:
        answers = await submit_all(batch, range(8))
    assert all(isinstance(answer, Down) for answer in answers)
    assert wire.batches == [list(range(8))]


async def test_a_short_outage_is_sat_out_with_the_same_batch() -> None:
    """S1.3: held for a bounded time; HAZARDS 13: the same items, so the same ids."""
    wire = Wire()
    wire.down = 2
    async with Coalescer(wire, hold_s=5) as batch:
        assert await submit_all(batch, [1, 2]) == [2, 4]
    assert wire.batches == [[1, 2]] * 3


async def test_a_long_outage_fails_an_item_once_it_has_waited_its_time() -> None:
    wire = Wire()
    wire.down = 1000
    async with Coalescer(wire, hold_s=2) as batch, asyncio.timeout(20):
        with pytest.raises(Down):
            await batch.submit(1)
    assert len(wire.batches) >= 2


async def test_a_submitter_who_has_gone_takes_nobody_along() -> None:
    wire = Wire(open_=False)
    async with Coalescer(wire, writers=1) as batch:
        on_the_wire = asyncio.create_task(batch.submit(1))
        await wire.started.wait()
        gone, stays = asyncio.create_task(batch.submit(2)), asyncio.create_task(batch.submit(3))
        await settle()
        gone.cancel()
        on_the_wire.cancel()
        await asyncio.gather(gone, on_the_wire, return_exceptions=True)
        wire.open.set()
        assert await stays == 6
    assert wire.batches == [[1], [3]]


async def test_a_flush_that_answers_too_few_fails_its_batch_loudly() -> None:
    async def flush(_items: list[int]) -> list[int]:
        return []

    async with Coalescer(flush) as batch:
        with pytest.raises(Exception, match="0 results"):
            await batch.submit(1)


async def test_closing_writes_what_has_gathered_and_takes_no_more() -> None:
    wire = Wire(open_=False)
    batch = Coalescer(wire, writers=1)
    taken = [asyncio.create_task(batch.submit(item)) for item in range(5)]
    await wire.started.wait()
    closing = asyncio.create_task(batch.close())
    await settle()
    assert not closing.done()
    with pytest.raises(CoalescerClosed):
        await batch.submit(9)
    wire.open.set()
    await closing
    assert await asyncio.gather(*taken) == [0, 2, 4, 6, 8]


async def test_a_batch_does_not_carry_the_log_ids_of_the_request_that_started_it() -> None:
    import structlog

    seen: list[dict[str, object]] = []

    async def flush(items: list[int]) -> list[int]:
        seen.append(structlog.contextvars.get_contextvars())
        return items

    async with Coalescer(flush) as batch:
        with log.bound(request_id="one"):
            await batch.submit(1)
    assert seen == [{}]
