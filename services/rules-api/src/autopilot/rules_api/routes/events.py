"""Run events of a workspace: read after a cursor, or live as server-sent events (S12.2, S12.3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from autopilot.domain.errors import Forbidden, NotFound
from autopilot.domain.events import RunEvent
from autopilot.kit.http import Problem
from autopilot.rules_api import auth
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.waiting import WAITING
from autopilot.rules_api.wire.events import (
    EventPage,
    EventQuery,
    Position,
    StreamQuery,
    fits,
    read_cursor,
)
from autopilot.storage import events
from autopilot.storage.events import EventHead

KEEP_ALIVE_S: Final = 15.0
RECHECK_S: Final = 15.0
_CHUNK = 200


async def list_events(call: Call, query: EventQuery) -> EventPage:
    after = read_cursor(query.after, "after") if query.after is not None else None
    workspace_id = call.caller.workspace_id
    async with call.database.connection() as conn:
        head = await events.read_head(conn, workspace_id)
        start = after or Position(epoch=head.epoch, seq=head.first_seq - 1)
        if not fits(start, head):
            return EventPage(items=[], cursor=str(_end_of(head)), reset=True)
        found = await events.read_after(conn, workspace_id, start.seq, query.limit)
    last = found[-1].seq if found else start.seq
    return EventPage(items=found, cursor=str(Position(epoch=head.epoch, seq=last)), reset=False)


async def stream_events(call: Call, query: StreamQuery) -> web.StreamResponse:
    """Each event with its cursor as id; `reset` where the client's place is none of this history any more.

    A stream outlives its first look at the token, so it looks again before it tells more: an idle one costs nothing.
    """
    given = call.request.headers.get("Last-Event-ID", "").strip() or query.after
    position = read_cursor(given, "Last-Event-ID") if given else None
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    now = asyncio.get_running_loop().time
    with call.request.app[WAITING].events.waiting(call.caller.workspace_id) as waiter:
        text, position = await _news(call, position)
        checked = now()
        await response.prepare(call.request)
        with suppress(ConnectionError):
            await response.write(text or b": here\n\n")
            while not waiter.drained:
                told = bool(text) or await waiter.news(now() + KEEP_ALIVE_S)
                text = b""
                if told:
                    if now() >= checked + RECHECK_S:
                        if not await _still_welcome(call):
                            break
                        checked = now()
                    text, position = await _news(call, position)
                if text or not told:
                    await response.write(text or b": keep-alive\n\n")
    return response


async def _still_welcome(call: Call) -> bool:
    """Whether the token is still live, and its person still a member."""
    try:
        session = await auth.authenticate(call.database, call.request, auth.READERS)
    except (Problem, Forbidden, NotFound):
        return False
    return session.place is not None


async def _news(call: Call, position: Position | None) -> tuple[bytes, Position]:
    """What to send to somebody at a position, and where they are then. Nobody's position is the end."""
    workspace_id = call.caller.workspace_id
    async with call.database.connection() as conn:
        head = await events.read_head(conn, workspace_id)
        end = _end_of(head)
        if position is None:
            return b"", end
        if not fits(position, head):
            return _message("reset", end, {"cursor": str(end)}), end
        found = await events.read_after(conn, workspace_id, position.seq, _CHUNK)
    if not found:
        return b"", position
    return b"".join(_event(head, event) for event in found), Position(epoch=head.epoch, seq=found[-1].seq)


def _event(head: EventHead, event: RunEvent) -> bytes:
    return _message(event.kind.value, Position(epoch=head.epoch, seq=event.seq), event)


def _message(kind: str, position: Position, data: object) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        str(position).encode(),
        kind.encode(),
        msgspec.json.encode(data),
    )


def _end_of(head: EventHead) -> Position:
    return Position(epoch=head.epoch, seq=head.last_seq)


ROUTES = (
    get("/api/events", list_events),
    get("/api/events/stream", stream_events),
)
