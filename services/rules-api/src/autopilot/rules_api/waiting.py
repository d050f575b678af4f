"""Requests that wait for something in the database: one poll for all of them, and none of them holds a connection (S1.2).

What is waited for has a kind (tasks for a runtime, a run's start, a workspace's events) and, within it, a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from autopilot.bus.subjects import EVENT_SUBJECTS, runtime_of, wake_any_runtime, workspace_of
from autopilot.domain.ids import RunId, RuntimeId, WorkspaceId
from autopilot.kit.loop import Loop, StepResult
from autopilot.rules_api.deps import Deps
from autopilot.storage import events, runs, runtime_protocol

K = TypeVar("K")

Look = Callable[[Collection[K]], Awaitable[Collection[K]]]

_IDLE_POLL_S = 60.0


class Waiter:
    """One request's place in the queue; news that comes while it looks for itself is kept for its next wait."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.drained = False

    def tell(self) -> None:
        self._news.set()

    def dismiss(self) -> None:
        """Let it answer now, with what it has."""
        self.drained = True
        self._news.set()

    async def news(self, deadline: float) -> bool:
        """Wait for news until `deadline` (the event loop's clock): whether there were any, and it makes sense to look again."""
        if self.drained:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        told = self._news.is_set()
        self._news.clear()
        return told and not self.drained


class Waiters(Generic[K]):
    """Everybody who waits for one kind of thing: `look` says, each `every_s`, for which of the keys there is news.

    The first look for a room that was empty is a pace later: who has just come has looked for himself.
    """

    def __init__(self, name: str, look: Look[K], *, every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._waiting: dict[K, set[Waiter]] = {}
        self._draining = False
        self._due = 0.0
        self.loop = Loop(f"wait {name}", self._step, poll_s=_IDLE_POLL_S)

    @contextmanager
    def waiting(self, key: K) -> Iterator[Waiter]:
        """Wait for the key while the block runs. Look after entering it: what happened before brings no news."""
        waiter = Waiter()
        waiter.drained = self._draining
        if self.loop.failing:
            self.loop.retry_now()  # whoever comes has just been authenticated by the database
        elif not self._waiting:
            self._due = asyncio.get_running_loop().time() + self._every_s
            self.loop.wake()
        self._waiting.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            mine = self._waiting[key]
            mine.discard(waiter)
            if not mine:
                del self._waiting[key]

    def tell(self, key: K) -> None:
        """There may be news for those who wait for this key."""
        for waiter in self._waiting.get(key, ()):
            waiter.tell()

    def drain(self) -> None:
        """Let everybody answer now, and those who come later too."""
        self._draining = True
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.dismiss()

    async def _step(self) -> StepResult:
        if not self._waiting:
            return None
        now = asyncio.get_running_loop().time
        if (early := self._due - now()) > 0:
            return early
        for key in await self._look(list(self._waiting)):
            self.tell(key)
        self._due = now() + self._every_s
        return self._every_s


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of one process."""

    tasks: Waiters[RuntimeId]
    starts: Waiters[RunId]
    events: Waiters[WorkspaceId]

    @property
    def kinds(self) -> tuple[Waiters[RuntimeId], Waiters[RunId], Waiters[WorkspaceId]]:
        return self.tasks, self.starts, self.events


WAITING: web.AppKey[Waiting] = web.AppKey("waiting", Waiting)


def attach(app: web.Application, deps: Deps) -> None:
    """Give the application its waiting rooms: they run with it, hear wake-ups, and let go when it stops."""
    waiting = make_waiting(deps)
    app[WAITING] = waiting

    async def run(_app: web.Application) -> AsyncIterator[None]:
        for kind in waiting.kinds:
            kind.loop.start()
        yield
        for kind in waiting.kinds:
            await kind.loop.stop(1.0)

    async def drain(_app: web.Application) -> None:
        for kind in waiting.kinds:
            kind.drain()

    app.cleanup_ctx.append(run)
    app.on_shutdown.append(drain)


def make_waiting(deps: Deps) -> Waiting:
    """The three kinds over one process's database and bus."""
    heads: dict[WorkspaceId, int] = {}

    async def have_tasks(ids: Collection[RuntimeId]) -> Collection[RuntimeId]:
        async with deps.database.connection() as conn:
            return await runtime_protocol.find_waiting(conn, ids)

    async def have_started(ids: Collection[RunId]) -> Collection[RunId]:
        async with deps.database.connection() as conn:
            return await runs.find_settled(conn, ids)

    async def have_events(ids: Collection[WorkspaceId]) -> Collection[WorkspaceId]:
        async with deps.database.connection() as conn:
            now = await events.read_last_seqs(conn, ids)
        moved = [workspace_id for workspace_id, seq in now.items() if heads.get(workspace_id) != seq]
        heads.clear()
        heads.update(now)
        return moved

    waiting = Waiting(
        tasks=Waiters("tasks", have_tasks, every_s=1.0),
        starts=Waiters("starts", have_started, every_s=0.1),
        events=Waiters("events", have_events, every_s=1.0),
    )
    deps.bus.on_wake(wake_any_runtime, lambda subject: waiting.tasks.tell(RuntimeId(runtime_of(subject))))
    deps.bus.on_wake(EVENT_SUBJECTS, lambda subject: waiting.events.tell(WorkspaceId(workspace_of(subject))))
    return waiting
