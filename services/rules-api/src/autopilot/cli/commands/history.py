"""`versions` and `cron-preview`: what a rule said and who published it, and when a schedule would fire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import calling, host_now, output_option
from autopilot.cli.commands.resources import print_items, read_members
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve
from autopilot.cli.output import JSON, TABLE, print_json, print_table
from autopilot.cli.text import coming, one_line, past

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

VERSION_COLUMNS = ("VERSION", "PUBLISHED", "CHANGE", "BY", "ANSWERS")
PREVIEW_COLUMNS = ("UTC", "LOCAL", "IN")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a version."""

    version: int
    change: str
    published_at: datetime
    published_by: str | None = None
    edited_by: str | None = None


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The next occurrences, and the schedule in words."""

    next_runs: list[datetime]
    description: str


@click.command("versions")
@click.argument("autopilot_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@output_option(TABLE)
@click.pass_obj
def list_versions(settings: Settings, autopilot_id: str, limit: int, output: str) -> None:
    """List what was published of an autopilot.

    Newest first: the change, who made it, and who answers for it.
    JSON has the whole rule of each version.
    """

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Version], dict[str, str]]:
        path = f"{PATH}/{await resolve(api, autopilot_id)}/versions"
        items = api.decode(await api.call("GET", path, query={"limit": str(limit)}), _Page).items
        found = [api.decode(bytes(item), Version) for item in items]
        names: dict[str, str] = {}
        if output == TABLE and found:
            names = {member.user_id: member.name for member in await read_members(api)}
        return items, found, names

    raw, found, names = calling(settings.as_person(), read)

    def person(user_id: str | None) -> str:
        return "system" if user_id is None else names.get(user_id, f"{user_id} (left)")

    print_items(
        output,
        raw,
        VERSION_COLUMNS,
        lambda: [
            (
                str(version.version),
                past(version.published_at, host_now(), None),
                version.change,
                person(version.edited_by or version.published_by),
                person(version.published_by),
            )
            for version in found
        ],
        nothing="No versions here.",
    )


@click.command("cron-preview")
@click.argument("expr", metavar="EXPR")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="An IANA name.")
@click.option("--count", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--after", metavar="TIME", help="Such as 2026-01-31T09:00:00Z; now if none.")
@output_option(TABLE)
@click.pass_obj
def preview_cron(
    settings: Settings, expr: str, timezone: str, count: int, after: str | None, output: str
) -> None:
    """Show when a cron expression would fire.

    \b
    Example:
      autopilot cron-preview "0 9 * * MON-FRI" --timezone Europe/Berlin
    """
    query = {"expr": expr, "tz": timezone, "count": str(count)} | ({"after": after} if after else {})

    async def ask(api: ApiClient) -> tuple[bytes, Preview]:
        answer = await api.call("GET", f"{PATH}/cron-preview", query=query)
        return answer, api.decode(answer, Preview)

    raw, preview = calling(settings.as_person(), ask)
    if output == JSON:
        print_json(raw)
        return
    click.echo(one_line(preview.description))
    if preview.next_runs:
        print_table(PREVIEW_COLUMNS, preview_rows(preview, timezone, host_now()))


def preview_rows(preview: Preview, timezone: str, now: datetime) -> list[tuple[str, ...]]:
    """Each occurrence in UTC and in its own zone, which the API has accepted."""
    from autopilot.domain.cron import zone

    local = zone(timezone).info
    return [
        (
            f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}",
            f"{moment.astimezone(local):%a %Y-%m-%d %H:%M %Z}",
            coming(moment, now, None).partition(" (")[0],
        )
        for moment in preview.next_runs
    ]
