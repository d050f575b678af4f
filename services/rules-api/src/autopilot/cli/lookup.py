"""Autopilots over HTTP: pages read to their end, and ids found by a unique prefix (S14)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.errors import NoSuchId
from autopilot.cli.text import one_line

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

PATH = "/api/autopilots"
ARCHIVED = "archived"

_PAGE = "100"
_PAGES = 10
_ID_LENGTH = 32
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{0,35}")
_CANDIDATES = 10


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of an autopilot."""

    id: str
    title: str
    status: str
    execution_mode: str
    pause_reason: str | None = None
    trigger_kinds: list[str] = []
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_run_status: str | None = None


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next_cursor: str | None = None


class _Identified(msgspec.Struct):
    id: str


async def read_autopilots(api: ApiClient, status: str | None = None) -> list[msgspec.Raw]:
    """Every autopilot that the API lists, newest first, as JSON; archived ones only if asked for."""
    query = {"limit": _PAGE} | ({"status": status} if status is not None else {})
    found: list[msgspec.Raw] = []
    while True:
        page = api.decode(await api.call("GET", PATH, query=query), _Page)
        found.extend(page.items)
        if page.next_cursor is None:
            return found
        query["cursor"] = page.next_cursor


def listed(api: ApiClient, items: list[msgspec.Raw]) -> list[Listed]:
    return [api.decode(bytes(item), Listed) for item in items]


async def resolve(api: ApiClient, given: str) -> str:
    """The id that `given` is, or is the only beginning of, archived autopilots included. NoSuchId otherwise."""
    whole, bare = _read_id(given)
    if whole is not None:
        return whole
    everything = await read_autopilots(api) + await read_autopilots(api, ARCHIVED)
    matching = [item for item in listed(api, everything) if item.id.replace("-", "").startswith(bare)]
    if len(matching) == 1:
        return matching[0].id
    if not matching:
        raise NoSuchId(f"No autopilot here has an id that begins with {given.strip()}.")
    shown = ", ".join(f"{item.id} {item.title!r}" for item in matching[:_CANDIDATES])
    more = len(matching) - _CANDIDATES
    raise NoSuchId(
        f"{len(matching)} autopilots have ids that begin with {given.strip()}: {shown}{f' and {more} more' if more > 0 else ''}."
    )


async def resolve_under(api: ApiClient, path: str, given: str, what: str, *, paged: bool = True) -> str:
    """The id that `given` is, or is the only beginning of among the newest 1,000 of the list at `path`. NoSuchId otherwise.

    `paged` is false for a list that comes whole.
    """
    whole, bare = _read_id(given)
    if whole is not None:
        return whole
    query = {"limit": _PAGE} if paged else {}
    matching: list[str] = []
    for _ in range(_PAGES):
        page = api.decode(await api.call("GET", path, query=query), _Page)
        ids = [api.decode(bytes(item), _Identified).id for item in page.items]
        matching += [found for found in ids if found.replace("-", "").startswith(bare)]
        if page.next_cursor is None:
            break
        query["cursor"] = page.next_cursor
    else:
        what = f"{what} among the newest {_PAGES * int(_PAGE):,}"
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise NoSuchId(f"No {what} here has an id that begins with {given.strip()}.")
    shown = ", ".join(matching[:_CANDIDATES])
    raise NoSuchId(f"{len(matching)} ids begin with {given.strip()}: {shown}.")


def read_id(given: str) -> str | None:
    """A whole id in its usual form; None for what is none."""
    bare = given.strip().lower().replace("-", "")
    return _formed(bare) if re.fullmatch(r"[0-9a-f]{32}", bare) else None


def _read_id(given: str) -> tuple[str | None, str]:
    """A whole id in its usual form, if it is one, and the digits that are given."""
    wanted = given.strip().lower()
    if not _PREFIX.fullmatch(wanted):
        raise click.UsageError(f"{one_line(given)!r} is neither an id nor the beginning of one.")
    bare = wanted.replace("-", "")
    if len(bare) != _ID_LENGTH:
        return None, bare
    return _formed(bare), bare


def _formed(bare: str) -> str:
    return f"{bare[:8]}-{bare[8:12]}-{bare[12:16]}-{bare[16:20]}-{bare[20:]}"
