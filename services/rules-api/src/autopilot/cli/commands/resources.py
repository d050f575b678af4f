"""What commands about lists of things share: pages read to their end, names found, rows or JSON printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from autopilot.cli.errors import NoSuchId
from autopilot.cli.lookup import read_id
from autopilot.cli.output import JSON, print_json, print_table
from autopilot.cli.text import one_line

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

T = TypeVar("T")

AGENTS = "/api/agents"
SQUADS = "/api/squads"
PROJECTS = "/api/projects"
RUNTIMES = "/api/runtimes"
MEMBERS = "/api/members"
TOKENS = "/api/tokens"

_PAGE = "100"


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next_cursor: str | None = None


class Named(msgspec.Struct, frozen=True):
    """A thing with a name."""

    id: str
    name: str


class Member(msgspec.Struct, frozen=True):
    """A person of the workspace."""

    user_id: str
    name: str
    email: str


async def read_all(
    api: ApiClient, path: str, query: Mapping[str, str] | None = None, *, whole: bool = False
) -> list[msgspec.Raw]:
    """Every item of a list, as JSON; `whole` is for a list that comes without pages."""
    asked = dict(query or {}) if whole else {"limit": _PAGE, **(query or {})}
    found: list[msgspec.Raw] = []
    while True:
        page = api.decode(await api.call("GET", path, query=asked), _Page)
        found.extend(page.items)
        if page.next_cursor is None:
            return found
        asked["cursor"] = page.next_cursor


async def resolve_named(api: ApiClient, path: str, given: str, what: str) -> str:
    """The id of the thing with that name, or whose id is that or the only one to begin so. NoSuchId otherwise."""
    whole = read_id(given)
    if whole is not None:
        return whole
    things = [api.decode(bytes(item), Named) for item in await read_all(api, path)]
    return _only([(thing.id, thing.name) for thing in things], given, what)


async def resolve_person(api: ApiClient, given: str) -> str:
    """The id of the member with that e-mail address, or whose id is that or the only one to begin so."""
    whole = read_id(given)
    if whole is not None:
        return whole
    people = await read_members(api)
    return _only([(member.user_id, member.email) for member in people], given.lower(), "member")


async def read_members(api: ApiClient) -> list[Member]:
    return [api.decode(bytes(item), Member) for item in await read_all(api, MEMBERS)]


def _only(things: Sequence[tuple[str, str]], given: str, what: str) -> str:
    wanted = given.strip()
    matching = [thing for thing in things if thing[1] == wanted] or [
        thing
        for thing in things
        if wanted and thing[0].replace("-", "").startswith(wanted.lower().replace("-", ""))
    ]
    if len(matching) == 1:
        return matching[0][0]
    if not matching:
        names = ", ".join(repr(one_line(name)) for _, name in things[:10]) or "none"
        raise NoSuchId(f"There is no {what} {one_line(wanted)!r} here; there are: {names}.")
    shown = ", ".join(f"{found} {one_line(name)!r}" for found, name in matching[:10])
    raise NoSuchId(f"{len(matching)} match {one_line(wanted)!r}: {shown}.")


def print_items(
    output: str,
    raw: Sequence[msgspec.Raw],
    columns: Sequence[str],
    rows: Callable[[], Sequence[Sequence[str]]],
    *,
    nothing: str,
) -> None:
    """A list as JSON, as a table, or as a sentence on stderr when it is empty."""
    if output == JSON:
        print_json(msgspec.json.encode(list(raw)))
    elif not raw:
        click.echo(nothing, err=True)
    else:
        print_table(columns, rows())


def yes(value: bool) -> str:
    return "yes" if value else "no"
