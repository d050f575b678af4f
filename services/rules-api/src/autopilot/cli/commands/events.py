"""`events`: what runs did, from a place on or as it happens; a follower outlives connections and servers (S14)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Final

import click
import msgspec

from autopilot.cli.commands.common import calling, full_id_option, host_now, output_option
from autopilot.cli.config import Settings
from autopilot.cli.errors import may_pass
from autopilot.cli.output import JSON, TABLE, print_table, warn
from autopilot.cli.text import clock_time, one_line, safe_json
from autopilot.domain.errors import AutopilotError
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import SystemClock

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

COLUMNS: Final = ("TIME", "EVENT", "STATUS", "SOURCE", "AUTOPILOT", "RUN", "REASON", "CURSOR")
# As wide as what is in them: lines that come one by one stand under each other.
_WIDTHS: Final = (20, 11, 13, 8, 13, 13, 22, 0)
_SHORT_ID: Final = 13

_SILENT_S: Final = 45.0  # three keep-alives of the server
_INTERRUPTED: Final = 130
_RESET: Final = (
    "This is none of the history any more (restored or removed): read the state anew. Going on from {}."
)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What a line shows of an event."""

    epoch: int
    seq: int
    kind: str
    status: str
    source: str
    autopilot_id: str
    run_id: str
    occurred_at: datetime
    reason_code: str | None = None


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    cursor: str
    reset: bool


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the stream; one without a kind only says where the stream is."""

    cursor: str
    kind: str
    data: bytes


@click.command("events")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--after", metavar="CURSOR", help="Begin behind this place. Default: the oldest; with --follow: now."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), help="At most so many, not with --follow. Default: 100."
)
@output_option(TABLE)
@full_id_option()
@click.pass_context
def events(
    context: click.Context, follow: bool, after: str | None, limit: int | None, output: str, full_id: bool
) -> None:
    """Show the run events of the workspace, or follow them.

    JSON is one event a line. A follower resumes where it was when the connection or the server is gone, and says so
    on stderr; it exits with 130 on Ctrl-C, and with 1 when the API refuses it, as for a token that was revoked.
    A CURSOR that is none of the history any more (a restored database) gives a warning, and the JSON line
    {"kind":"reset","cursor":"..."}.
    """
    settings: Settings = context.obj
    if not follow:
        _list(settings, after, limit or 100, output, full_id)
        return
    if limit is not None:
        raise click.UsageError("--limit does not go with --follow.")
    show = _show_json if output == JSON else _LineWriter(full_id)
    try:
        calling(settings.as_person(), lambda api: _follow(api, after, show))
    except KeyboardInterrupt:
        context.exit(_INTERRUPTED)


def event_row(event: Event, now: datetime, zone: tzinfo | None, *, full_id: bool) -> tuple[str, ...]:
    """One row; a zone of None is the viewer's own."""
    length = None if full_id else _SHORT_ID
    return (
        clock_time(event.occurred_at, now, zone),
        event.kind,
        event.status,
        event.source,
        event.autopilot_id[:length],
        event.run_id[:length],
        event.reason_code or "-",
        f"{event.epoch}.{event.seq}",
    )


def _list(settings: Settings, after: str | None, limit: int, output: str, full_id: bool) -> None:
    query = {"limit": str(limit)} | ({"after": after} if after is not None else {})

    async def read(api: ApiClient) -> tuple[_Page, list[Event]]:
        page = api.decode(await api.call("GET", "/api/events", query=query), _Page)
        return page, [api.decode(bytes(item), Event) for item in page.items]

    page, found = calling(settings.as_person(), read)
    if page.reset:
        warn(_RESET.format(one_line(page.cursor)))
    if output == JSON:
        if page.reset:
            click.echo(_reset_line(page.cursor))
        for raw in page.items:
            click.echo(safe_json(bytes(raw).decode()))
        return
    if found:
        print_table(COLUMNS, [event_row(event, host_now(), None, full_id=full_id) for event in found])
    click.echo(
        f"{'More' if len(found) == limit else 'Later events'}: --after {one_line(page.cursor)}", err=True
    )


async def _follow(api: ApiClient, after: str | None, show: Callable[[Message], None]) -> None:
    """Show each message, from connection to connection; returns never, raises when it makes no sense to go on."""
    clock, backoff = SystemClock(), Backoff(first_s=0.2, last_s=5.0)
    place, been_there = after, False
    while True:
        reason = "the server ended the stream"
        headers = {"Last-Event-ID": place} if place is not None else None
        try:
            lines = api.lines("/api/events/stream", headers=headers, silent_s=_SILENT_S)
            async with aclosing(lines), aclosing(_messages(lines)) as messages:
                async for message in messages:
                    if backoff.failures:
                        click.echo("Connected again.", err=True)
                        backoff.reset()
                    place, been_there = message.cursor, True
                    if message.kind:
                        show(message)
        except AutopilotError as error:
            if not been_there or not may_pass(error):
                raise
            reason = error.message
        if not backoff.failures:
            warn(f"The events are interrupted ({one_line(reason)}); trying again.")
        backoff.note_failure()
        await clock.sleep(backoff.next_delay_s())


async def _messages(lines: AsyncIterator[bytes]) -> AsyncGenerator[Message, None]:
    fields: dict[str, bytes] = {}
    async for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        if name:
            fields[name.decode()] = value.removeprefix(b" ")
        elif line.strip() == b"" and "id" in fields:
            kind = fields.get("event", b"").decode()
            yield Message(cursor=fields["id"].decode(), kind=kind, data=fields.get("data", b""))
            fields = {}


def _show_json(message: Message) -> None:
    if message.kind == "reset":
        warn(_RESET.format(one_line(message.cursor)))
        click.echo(_reset_line(message.cursor))
    else:
        click.echo(safe_json(message.data.decode()))


class _LineWriter:
    """Shows events as lines under one heading."""

    def __init__(self, full_id: bool) -> None:
        self._full_id = full_id
        self._headed = False

    def __call__(self, message: Message) -> None:
        if message.kind == "reset":
            warn(_RESET.format(one_line(message.cursor)))
            return
        try:
            event = msgspec.json.decode(message.data, type=Event)
        except msgspec.DecodeError as error:
            raise click.ClickException(
                "An event is not understood: command and API differ in version."
            ) from error
        if not self._headed:
            self._headed = True
            self._write(COLUMNS)
        self._write(event_row(event, host_now(), None, full_id=self._full_id))

    def _write(self, cells: tuple[str, ...]) -> None:
        click.echo(
            "  ".join(
                f"{one_line(cell):<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)
            ).rstrip()
        )


def _reset_line(cursor: str) -> str:
    return msgspec.json.encode({"kind": "reset", "cursor": cursor}).decode()
