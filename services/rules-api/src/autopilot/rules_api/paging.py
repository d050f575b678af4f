"""Lists in pages: newest first, continued after the id that an opaque cursor holds (S13)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar
from uuid import UUID

import msgspec

from autopilot.kit.http import Problem
from autopilot.rules_api.wire.common import Query

T = TypeVar("T")
R = TypeVar("R")


# Sixteen bytes as URL-safe base64; the pattern is for the OpenAPI document, a cursor of another form is `bad_cursor`.
Cursor = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"})]


class PageQuery(Query, frozen=True, kw_only=True):
    """How a list is asked for; lists with filters extend it."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="How many at most")] = 20
    cursor: Annotated[Cursor | None, msgspec.Meta(description="`next_cursor` of the page before")] = None

    @property
    def before(self) -> UUID | None:
        """The id after which the page begins; 400 for a cursor that is none of ours."""
        return decode_cursor(self.cursor) if self.cursor is not None else None

    @property
    def fetch(self) -> int:
        """How many rows to read: one more than shown tells whether there is a next page."""
        return self.limit + 1


class HistoryQuery(PageQuery, frozen=True, kw_only=True):
    """How runs and deliveries are asked for: after a cursor, or so many from the newest, not both (S13)."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=10_000, description="Skip so many of the newest")] | None = (
        None
    )

    @property
    def skip(self) -> int:
        """How many rows to pass over; 400 for an offset beside a cursor."""
        if self.offset is not None and self.cursor is not None:
            raise Problem(400, "malformed", "Give offset or cursor, not both.", field="offset")
        return self.offset or 0


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `next_cursor` is null on the last."""

    items: list[T]
    next_cursor: str | None


def page_of(
    rows: Sequence[R], query: PageQuery, id_of: Callable[[R], UUID], show: Callable[[R], T]
) -> Page[T]:
    """The page for rows that were read with `query.fetch` as their limit."""
    shown = rows[: query.limit]
    more = len(rows) > query.limit
    return Page(
        items=[show(row) for row in shown], next_cursor=encode_cursor(id_of(shown[-1])) if more else None
    )


def encode_cursor(last: UUID) -> str:
    return base64.urlsafe_b64encode(last.bytes).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> UUID:
    """The id that a cursor holds; Problem `bad_cursor` for anything else."""
    try:
        found = UUID(bytes=base64.b64decode(cursor.encode() + b"==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise _bad_cursor() from error
    if encode_cursor(found) != cursor:
        raise _bad_cursor()
    return found


def _bad_cursor() -> Problem:
    return Problem(400, "bad_cursor", "The cursor is not one that this list gave.", field="cursor")
