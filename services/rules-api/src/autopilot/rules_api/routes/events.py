"""Run events of a workspace: read after a cursor, or live as server-sent events (S12.2, S12.3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import hdrs, web

from autopilot.domain.errors import InfrastructureError
from autopilot.kit import log, metrics
from autopilot.rules_api.endpoint import Call, Header, get
from autopilot.rules_api.event_feed import FEED, read_on
from autopilot.rules_api.waiting import WAITING, Waiter
from autopilot.rules_api.wire.events import EventPage, EventQuery, StreamQuery, read_cursor

KEEP_ALIVE_S: Final = 15.0
STUCK_S: Final = 15.0

LAST_EVENT_ID: Final = Header(
    name="Last-Event-ID",
    about="The `id` of the last message received: the stream goes on behind it.",
    shape={"pattern": r"^[0-9]{1,18}\.[0-9]{1,18}$"},
)

_logger = log.get_logger()
_open = metrics.gauge("event_streams_open", "Live streams of events")
_stuck = metrics.counter("event_streams_stuck_total", "Streams cut because their reader did not read")


async def list_events(call: Call, query: EventQuery) -> EventPage:
    after = read_cursor(query.after, "after") if query.after is not None else None
    async with call.database.connection() as conn:
        reading = await read_on(conn, call.caller.workspace_id, after, query.limit)
    return EventPage(items=reading.found, cursor=str(reading.position), reset=reading.reset)


async def stream_events(call: Call, query: StreamQuery) -> web.StreamResponse:
    """Each event with its cursor as id; `reset` where the client's place is none of this history any more.

    The first words are the client's place, so that it has one to come back to before anything happens.
    """
    given = call.request.headers.get("Last-Event-ID", "").strip() or query.after
    position = read_cursor(given, "Last-Event-ID") if given else None
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    if call.request.method == hdrs.METH_HEAD:
        return response
    workspace_id, feed = call.caller.workspace_id, call.request.app[FEED]
    with (
        call.request.app[WAITING].events.waiting(workspace_id) as waiter,
        feed.listening(call.caller, waiter),
    ):
        if position is None:
            position = await feed.end(workspace_id)
        await response.prepare(call.request)
        text = b"id: %s\n\n" % str(position).encode()
        # Without the client or the database it ends, and the client comes back with its place.
        with suppress(ConnectionError, InfrastructureError), _open.track_inprogress():
            while not waiter.drained:
                news = await feed.after(workspace_id, position)
                position, text = news.position, text + news.text
                if text and not await _send(call, response, text):
                    break
                text = b""
                if not news.text and not await _idle(call, response, waiter):
                    break
    return response


async def _idle(call: Call, response: web.StreamResponse, waiter: Waiter) -> bool:
    """Keep the connection alive until there is news; whether there is, for somebody who still listens."""
    now = asyncio.get_running_loop().time
    while not await waiter.news(now() + KEEP_ALIVE_S):
        if waiter.drained or not await _send(call, response, b": keep-alive\n\n"):
            return False
    return True


async def _send(call: Call, response: web.StreamResponse, text: bytes) -> bool:
    """Write within a time, so that what waits in memory for a reader who does not read is one piece, and not for ever."""
    try:
        async with asyncio.timeout(STUCK_S):
            await response.write(text)
    except TimeoutError:
        _stuck.inc()
        _logger.info("event_stream_stuck", workspace_id=str(call.caller.workspace_id))
        if call.request.transport is not None:
            call.request.transport.abort()
        return False
    return True


ROUTES = (
    get("/api/events", list_events),
    get("/api/events/stream", stream_events, headers=(LAST_EVENT_ID,)),
)
