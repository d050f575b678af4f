"""Timezones from the shipped tzdata alone (S8.2), each as a table of the instants at which its offset changes."""

from __future__ import annotations

import difflib
import re
import struct
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from autopilot.domain.errors import InvalidValue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = 86_400
_MONTH: Final = 30 * _DAY
_DECADE: Final = 3_652 * _DAY
_EVER: Final = 1 << 60
_OLDEST: Final = -5_364_662_400  # 1800-01-01: no zone changed its clock before
_UNPLACED: Final = frozenset({"factory", "localtime", "local", "posixrules", "system"})


class InvalidTimezone(InvalidValue):
    """The timezone is refused: not an exact IANA name of the shipped tzdata (S8.2)."""

    def __init__(self, message: str) -> None:
        super().__init__("timezone", message, code="invalid_timezone")


class Timeline(NamedTuple):
    """Spans of constant UTC offset, in seconds since the epoch, true for instants from `begin` to before `end`.

    Span i lasts from `starts[i]` to before `stops[i]` at `offsets[i]`. `reached[i]` is the local time up to which the
    zone's wall clock has come before span i: in a fold it is ahead of the clock, after a gap behind it.
    """

    begin: int
    end: int
    starts: list[int]
    stops: list[int]
    offsets: list[int]
    reached: list[int]


class Zone:
    """An IANA timezone. `key` is its name, `info` its ZoneInfo (from the shipped data) for showing local times."""

    __slots__ = ("_by_rule", "_explicit", "_recent", "info", "key")

    def __init__(self, key: str, tzif: bytes) -> None:
        self.key = key
        self.info = ZoneInfo.from_file(BytesIO(tzif), key=key)
        listed = [second for second in _transitions(tzif) if second >= _OLDEST]
        has_rule = b"," in tzif.rstrip(b"\n").rpartition(b"\n")[2]
        end = max(listed, default=0) + 1 if has_rule else _EVER
        spans = [(-_EVER, self._offset_at(_OLDEST)), *((s, self._offset_at(s)) for s in listed)]
        self._explicit = self._recent = _timeline(-_EVER, end, spans)
        self._by_rule: dict[int, Timeline] = {}

    def __repr__(self) -> str:
        return f"Zone({self.key!r})"

    def timeline(self, second: int) -> Timeline:
        """A timeline that is true at that second."""
        recent = self._recent
        if recent.begin <= second < recent.end:
            return recent
        if second < self._explicit.end:
            self._recent = self._explicit
        else:
            decade = second // _DECADE
            if decade not in self._by_rule:
                self._by_rule[decade] = self._apply_rule(decade)
            self._recent = self._by_rule[decade]
        return self._recent

    def first_reaching(self, local: int) -> int:
        """The first instant at which the zone's wall clock shows `local` or later (after a gap: the gap's end)."""
        _, _, starts, _, offsets, reached = self.timeline(local + 2 * _DAY)
        i = bisect_right(reached, local) - 1
        return max(starts[i], local - offsets[i])

    def _apply_rule(self, decade: int) -> Timeline:
        """The changes after the last listed one follow a yearly rule: two a year, months apart, found by sampling.

        The samples begin a month early, or just before the last listed change, so that a fold that reaches into the
        decade is seen.
        """
        begin, end = decade * _DECADE, (decade + 1) * _DECADE
        before = max(begin - _MONTH, self._explicit.end - 2)
        spans = [(-_EVER, self._offset_at(before))]
        while before < end:
            after = before + _MONTH
            if self._offset_at(after) != spans[-1][1]:
                spans.append(self._change_between(before, after))
            before = after
        return _timeline(max(begin, self._explicit.end), end, [span for span in spans if span[0] < end])

    def _change_between(self, before: int, after: int) -> tuple[int, int]:
        offset = self._offset_at(after)
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset_at(middle) == offset:
                after = middle
            else:
                before = middle
        return after, offset

    def _offset_at(self, second: int) -> int:
        offset = (_EPOCH + timedelta(0, second)).astimezone(self.info).utcoffset()
        assert offset is not None
        return offset.days * _DAY + offset.seconds


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """The timezone of that exact name. Raises InvalidTimezone, with a suggestion where one is near."""
    if name not in zone_names():
        raise InvalidTimezone(_refusal(name))
    return Zone(name, files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes())


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every name `zone` accepts."""
    names = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(name for name in names if name.casefold() not in _UNPLACED)


@lru_cache(maxsize=1)
def tzdata_version() -> str:
    """The version of the shipped tzdata: when it changes, next runs are to be recomputed (S7.9)."""
    return version("tzdata")


def _refusal(name: str) -> str:
    shown = repr(name if len(name) <= 64 else name[:64] + "…")
    if not name.strip():
        return "the timezone is empty; use an IANA name such as 'UTC' or 'Europe/Berlin'"
    if name.casefold() in _UNPLACED:
        return f"{shown} names no place; use an IANA name such as 'Europe/Berlin'"
    if re.match(r"(UTC|GMT|Z)?\s*[+-]?\d", name, re.IGNORECASE):
        return (
            f"{shown} is an offset, which ignores daylight saving; use an IANA name such as 'Europe/Berlin'"
        )
    near = _nearest(name) if len(name) <= 64 else None
    return f"{shown} is not an IANA timezone" + (f"; did you mean {near!r}?" if near else "")


def _nearest(name: str) -> str | None:
    wanted = name.strip().casefold().replace(" ", "_")
    folded = {known.casefold(): known for known in sorted(zone_names())}
    if wanted in folded:
        return folded[wanted]
    city = next((known for key, known in folded.items() if key.rpartition("/")[2] == wanted), None)
    if city is not None:
        return city
    return next((folded[key] for key in difflib.get_close_matches(wanted, folded, n=1, cutoff=0.75)), None)


def _transitions(tzif: bytes) -> tuple[int, ...]:
    """The transition instants of a TZif file's 64-bit block (RFC 8536), in seconds since the epoch."""
    header = struct.Struct(">4s16x6l")
    _, utc, std, leaps, times, types, chars = header.unpack_from(tzif)
    second_block = header.size + times * 5 + types * 6 + chars + leaps * 8 + std + utc
    _, _, _, _, times, _, _ = header.unpack_from(tzif, second_block)
    return struct.unpack_from(f">{times}q", tzif, second_block + header.size)


def _timeline(begin: int, end: int, spans: list[tuple[int, int]]) -> Timeline:
    starts, offsets, reached = [spans[0][0]], [spans[0][1]], [-_EVER]
    for start, offset in spans[1:]:
        if offset != offsets[-1]:
            reached.append(max(reached[-1], start + offsets[-1]))
            starts.append(start)
            offsets.append(offset)
    return Timeline(begin, end, starts, [*starts[1:], end], offsets, reached)
