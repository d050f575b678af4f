"""What live streams read and who may go on listening: asked once for everybody, however many listen (S12.2, HAZARDS 26)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import web

from autopilot.domain.events import RunEvent
from autopilot.domain.ids import TokenId, WorkspaceId
from autopilot.kit.loop import Loop, StepResult
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.deps import Deps
from autopilot.rules_api.waiting import WAITING, Waiter
from autopilot.rules_api.wire.events import Position, fits
from autopilot.storage import events
from autopilot.storage.database import Conn, Database

RECHECK_S: Final = 15.0
_CHUNK: Final = 64
_IDLE_POLL_S: Final = 60.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What follows a place, and the place behind it. `reset`: the place asked for is none of this history any more."""

    found: list[RunEvent]
    position: Position
    reset: bool = False


async def read_on(conn: Conn, workspace_id: WorkspaceId, after: Position | None, limit: int) -> Reading:
    """The events behind a place, without a hole, even while old ones are being removed; None is the oldest place kept."""
    head = await events.read_head(conn, workspace_id)
    start = after or Position(epoch=head.epoch, seq=head.first_seq - 1)
    if fits(start, head):
        found = await events.read_after(conn, workspace_id, start.seq, limit)
        if not found and head.last_seq == start.seq:
            return Reading(found=[], position=start)
        if found and (found[0].epoch, found[0].seq) == (start.epoch, start.seq + 1):
            return Reading(found=found, position=Position(epoch=head.epoch, seq=found[-1].seq))
    return Reading(found=[], position=Position(epoch=head.epoch, seq=head.last_seq), reset=True)


class News(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stream, and the place of who has been sent it."""

    text: bytes
    position: Position


class EventFeed:
    """The source of all streams of a process. Those at the same place share one read, and one query asks for all
    whether they are still welcome."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reads: dict[tuple[WorkspaceId, Position], asyncio.Task[News]] = {}
        self._listeners: dict[Waiter, tuple[TokenId, WorkspaceId]] = {}
        self.loop = Loop("event listeners", self._dismiss, poll_s=_IDLE_POLL_S)

    async def end(self, workspace_id: WorkspaceId) -> Position:
        """The place behind the newest event."""
        async with self._database.connection() as conn:
            head = await events.read_head(conn, workspace_id)
        return Position(epoch=head.epoch, seq=head.last_seq)

    async def after(self, workspace_id: WorkspaceId, position: Position) -> News:
        """What to tell somebody at this place; nothing if there is nothing new."""
        place = workspace_id, position
        read = self._reads.get(place)
        if read is None:
            read = self._reads[place] = asyncio.create_task(self._read(*place))
            read.add_done_callback(_look_at_error)
        return await asyncio.shield(read)

    @contextmanager
    def listening(self, caller: Caller, waiter: Waiter) -> Iterator[None]:
        """Watch over a stream: within `RECHECK_S` of losing the right to listen its waiter is dismissed."""
        self._listeners[waiter] = caller.token_id, caller.workspace_id
        self.loop.wake()
        try:
            yield
        finally:
            del self._listeners[waiter]

    async def _read(self, workspace_id: WorkspaceId, position: Position) -> News:
        try:
            async with self._database.connection() as conn:
                # Whoever comes from here on may know of more than this read sees, and begins another one.
                del self._reads[workspace_id, position]
                reading = await read_on(conn, workspace_id, position, _CHUNK)
        except BaseException:
            self._reads.pop((workspace_id, position), None)
            raise
        if reading.reset:
            told = _message("reset", reading.position, {"cursor": str(reading.position)})
        else:
            told = b"".join(
                _message(event.kind.value, Position(epoch=event.epoch, seq=event.seq), event)
                for event in reading.found
            )
        return News(text=told, position=reading.position)

    async def _dismiss(self) -> StepResult:
        listeners = dict(self._listeners)
        if not listeners:
            return None
        async with self._database.connection() as conn:
            welcome = await events.find_welcome(conn, set(listeners.values()))
        for waiter, listener in listeners.items():
            if listener not in welcome:
                waiter.dismiss()
        return RECHECK_S


def _message(kind: str, position: Position, data: object) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        str(position).encode(),
        kind.encode(),
        msgspec.json.encode(data),
    )


def _look_at_error(read: asyncio.Task[News]) -> None:
    # Those who shared the read have its error; with all of them gone nobody would look, and asyncio complains.
    if not read.cancelled():
        read.exception()


FEED: web.AppKey[EventFeed] = web.AppKey("event_feed", EventFeed)


def attach(app: web.Application, deps: Deps) -> None:
    """Give the application its feed, whose loop runs with it; `waiting.attach` comes first."""
    feed = app[FEED] = EventFeed(deps.database)
    assert WAITING in app

    async def run(_app: web.Application) -> AsyncIterator[None]:
        feed.loop.start()
        yield
        await feed.loop.stop(1.0)

    app.cleanup_ctx.append(run)
