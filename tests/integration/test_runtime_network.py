"""A runtime on a bad network, against the real API: most of its calls fail, before or after their effect (S11.3, HAZARDS 14, 15)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.api import Api
from tests.support.cli import environment, runtime_process
from tests.support.dispatching import assert_coherent, fetch
from tests.support.work import Shop, Started, make_shop

from autopilot.bus.connection import Bus
from autopilot.cli.client import ApiClient
from autopilot.cli.config import Connection
from autopilot.cli.errors import ApiUnreachable
from autopilot.cli.runtime.execution import Command
from autopilot.cli.runtime.protocol import Registration, RuntimeApi
from autopilot.cli.runtime.worker import Options, Worker
from autopilot.domain.states import ExecutionMode
from autopilot.kit.clock import SystemClock
from autopilot.kit.config import Secret
from autopilot.scheduler.jobs.leases import recover_tasks

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


class QuickClock(SystemClock):
    """Waits a twentieth of what is asked for."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 20)


class Fate(Enum):
    """What becomes of a call."""

    LOST = "it never arrives"
    UNANSWERED = "it takes effect and its answer is lost"
    ANSWERED = "it comes through"


# What becomes of the calls of one kind, in turn and again from the start: both losses come in each order, and alone.
BAD = (
    Fate.UNANSWERED,
    Fate.LOST,
    Fate.ANSWERED,
    Fate.LOST,
    Fate.UNANSWERED,
    Fate.ANSWERED,
    Fate.UNANSWERED,
    Fate.ANSWERED,
)
GOOD = (Fate.ANSWERED,)


class BadNetwork(RuntimeApi):
    """Does to each kind of call in turn what the fates say; nothing at all comes through while it is `down`."""

    def __init__(self, client: ApiClient, fates: Sequence[Fate]) -> None:
        super().__init__(client)
        self._fates = fates
        self.down = False
        self.sent: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._on_the_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def cut(self) -> None:
        """Nothing comes through any more, and nothing that was sent before is still on its way."""
        self.down = True
        await self._quiet.wait()

    def _is_cut(self) -> bool:
        return self.down

    async def register(self, name: str, concurrency: int, capabilities: object) -> Registration:
        answer = await super().register(name, concurrency, {})
        return Registration(runtime_id=answer.runtime_id, heartbeat_s=4, renew_s=4, poll_s=1)

    async def _post(self, path: str, body: object, *, timeout_s: float = 10.0) -> bytes:
        kind = path.rsplit("/", 1)[1]
        fate = self._fates[self.sent[kind] % len(self._fates)]
        self.sent[kind] += 1
        if self._is_cut() or fate is Fate.LOST:
            raise ApiUnreachable
        self._on_the_way += 1
        self._quiet.clear()
        try:
            answer = await super()._post(path, body, timeout_s=timeout_s)
        finally:
            self._on_the_way -= 1
            if not self._on_the_way:
                self._quiet.set()
        if self._is_cut() or fate is Fate.UNANSWERED:
            self.lost[kind] += 1
            raise ApiUnreachable
        return answer


@asynccontextmanager
async def working(shop: Shop, line: str, fates: Sequence[Fate] = GOOD) -> AsyncIterator[BadNetwork]:
    stopping = asyncio.Event()
    connection = Connection(
        api_url=shop.api.base, token=Secret(shop.machine.client.token or ""), workspace=None
    )
    command = Command(line=line, environ=os.environ)
    async with ApiClient(connection) as client:
        network = BadNetwork(client, fates)
        worker = Worker(network, Options(command=command, name="box", concurrency=4), clock=QuickClock())
        work = asyncio.create_task(worker.run(stopping))
        try:
            yield network
        finally:
            stopping.set()
            await work


async def until_ended(shop: Shop, runs: list[Started]) -> None:
    ids = [one.run_id for one in runs]
    async with asyncio.timeout(40):
        while await fetch(
            shop.database,
            "SELECT 1 FROM autopilot_run WHERE id = ANY($1) AND completed_at IS NULL LIMIT 1",
            ids,
        ):
            await asyncio.sleep(0.02)


async def appears(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", range(3))
async def test_every_task_is_executed_and_ended_once(api: Api, tmp_path: Path, first: int) -> None:
    """Claims are repeated under their claim id, starts and ends until they are known."""
    shop = await make_shop(api, concurrency=4)
    runs = [await shop.start(mode) for mode in (ISSUE, BARE) * 6]
    line = f"echo $AUTOPILOT_TASK_ID >> {tmp_path}/done; echo for $AUTOPILOT_RUN_ID"
    async with working(shop, line, BAD[first:] + BAD[:first]) as network:
        await until_ended(shop, runs)
    assert {"claim", "start", "complete"} <= network.lost.keys()
    assert sorted((tmp_path / "done").read_text().split()) == sorted(str(one.task_id) for one in runs)
    for one in runs:
        run, task = await shop.run(one.run_id), await shop.task(one.task_id)
        assert (run["status"], run["result"]) == ("completed", f"for {one.run_id}")
        assert (task["attempt"], task["claims"]) == (1, 1)
    comments = await fetch(shop.database, "SELECT issue_id FROM issue_comment")
    assert len(comments) == len({row["issue_id"] for row in comments}) == 6
    await assert_coherent(shop.database)


async def test_who_comes_back_late_still_ends_what_nobody_took_and_lets_go_of_what_was_taken(
    api: Api, tmp_path: Path
) -> None:
    """HAZARDS 15: the network is away for longer than a lease; one task is swept meanwhile, the other is not."""
    shop = await make_shop(api, concurrency=4)
    kept, swept = await shop.start(BARE), await shop.start(ISSUE)
    line = (
        f"echo $AUTOPILOT_ATTEMPT >> {tmp_path}/$AUTOPILOT_TASK_ID;"
        f' [ "$AUTOPILOT_ATTEMPT" = 2 ] || while ! [ -e {tmp_path}/go ]; do sleep 0.02; done; echo done'
    )
    async with working(shop, line) as network:
        async with asyncio.timeout(30):
            while len(list(tmp_path.iterdir())) < 2:
                await asyncio.sleep(0.01)
        await network.cut()
        await shop.end_lease(swept.task_id)
        assert (await recover_tasks(shop.database, Bus(None, name="test")))["requeued"] == 1
        await fetch(shop.database, "UPDATE agent_task SET available_at = clock_timestamp()")
        await shop.end_lease(kept.task_id)
        network.down = False
        await until_ended(shop, [swept])
        assert (await shop.run(kept.run_id))["status"] == "running"
        (tmp_path / "go").write_text("")
        await until_ended(shop, [kept])
    assert (tmp_path / str(kept.task_id)).read_text() == "1\n"
    assert (tmp_path / str(swept.task_id)).read_text() == "1\n2\n"
    for one, attempt in ((kept, 1), (swept, 2)):
        assert (await shop.run(one.run_id))["status"] == "completed"
        assert (await shop.task(one.task_id))["attempt"] == attempt
    assert UUID(shop.machine.id) == (await shop.task(swept.task_id))["runtime_id"]
    await assert_coherent(shop.database)


async def test_who_stood_still_past_its_lease_overwrites_nothing(api: Api, tmp_path: Path) -> None:
    """LE1: SIGSTOP past the lease, another one ends the task, SIGCONT; what the first one reports is refused."""
    shop = await make_shop(api)
    started = await shop.start(ISSUE)
    env = environment(api.base, AUTOPILOT_RUNTIME_TOKEN=shop.machine.client.token or "")
    wait = f"while ! [ -e {tmp_path}/go ]; do sleep 0.02; done"
    command = f"echo > {tmp_path}/began; {wait}; echo stale; echo > {tmp_path}/ended"
    async with runtime_process(api.base, command, env=env) as process:
        await appears(tmp_path / "began")
        process.send_signal(signal.SIGSTOP)
        await shop.end_lease(started.task_id)
        assert (await recover_tasks(shop.database, Bus(None, name="test")))["requeued"] == 1
        await fetch(shop.database, "UPDATE agent_task SET available_at = clock_timestamp()")
        fresh = await shop.held(started)
        assert (await shop.machine.call(fresh, "complete", result="fresh"))[0] == 200
        (tmp_path / "go").write_text("")
        await appears(
            tmp_path / "ended"
        )  # else it might hear that its lease is lost, stop the command, and report nothing
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        async with asyncio.timeout(30):
            while b"report_refused" not in (line := await process.stderr.readline()):
                assert line
    assert (await shop.run(started.run_id))["result"] == "fresh"
    assert (await shop.task(started.task_id))["result"] == "fresh"
    await assert_coherent(shop.database)
