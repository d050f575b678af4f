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


class Span(NamedTuple):
    """A stretch of constant UTC offset, from `start` to before `stop`, in seconds since the epoch.

    `reached` is the local time up to which the zone's wall clock has come before: in a fold it is ahead of the clock,
    after a gap behind it.
    """

    start: int
    stop: int
    offset: int
    reached: int


class _Timeline(NamedTuple):
    """Spans that hold for instants before `end`, with their starts and reaches apart for bisection."""

    end: int
    spans: list[Span]
    starts: list[int]
    reaches: list[int]


class Zone:
    """An IANA timezone. `key` is its name, `info` its ZoneInfo (from the shipped data) for showing local times."""

    __slots__ = ("_by_rule", "_listed", "_recent", "info", "key")

    def __init__(self, key: str, tzif: bytes) -> None:
        self.key = key
        self.info = ZoneInfo.from_file(BytesIO(tzif), key=key)
        listed = [second for second in _transitions(tzif) if second >= _OLDEST]
        has_rule = b"," in tzif.rstrip(b"\n").rpartition(b"\n")[2]
        end = max(listed, default=0) + 1 if has_rule else _EVER
        changes = [(-_EVER, self._offset_at(_OLDEST)), *((s, self._offset_at(s)) for s in listed)]
        self._listed = _timeline(end, changes)
        self._by_rule: dict[int, _Timeline] = {}
        self._recent = self._listed.spans[-1]

    def __repr__(self) -> str:
        return f"Zone({self.key!r})"

    def span(self, second: int) -> Span:
        """The span that holds that instant."""
        recent = self._recent
        start, stop, _, _ = recent
        if start <= second < stop:
            return recent
        timeline = self._timeline(second)
        self._recent = recent = timeline.spans[bisect_right(timeline.starts, second) - 1]
        return recent

    def first_reaching(self, local: int) -> int:
        """The first instant at which the zone's wall clock shows `local` or later (after a gap: the gap's end)."""
        timeline = self._timeline(local + 2 * _DAY)
        span = timeline.spans[bisect_right(timeline.reaches, local) - 1]
        return max(span.start, local - span.offset)

    def _timeline(self, second: int) -> _Timeline:
        if second < self._listed.end:
            return self._listed
        decade = second // _DECADE
        if decade not in self._by_rule:
            self._by_rule[decade] = self._apply_rule(decade)
        return self._by_rule[decade]

    def _apply_rule(self, decade: int) -> _Timeline:
        """The changes after the last listed one follow a yearly rule: two a year, months apart, found by sampling.

        The samples begin a month early, or some days before the last listed change (another is never that near), so
        that a fold that reaches into the decade is seen.
        """
        end = (decade + 1) * _DECADE
        before = max(decade * _DECADE - _MONTH, self._listed.end - 5 * _DAY)
        changes = [(before, self._offset_at(before))]
        while before < end:
            after = before + _MONTH
            if self._offset_at(after) != changes[-1][1]:
                changes.append(self._change_between(before, after))
            before = after
        return _timeline(end, [change for change in changes if change[0] < end])

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


def _timeline(end: int, changes: list[tuple[int, int]]) -> _Timeline:
    """The spans between changes of (start, offset); a change to the same offset is none."""
    starts, offsets, reaches = [changes[0][0]], [changes[0][1]], [-_EVER]
    for start, offset in changes[1:]:
        if offset != offsets[-1]:
            reaches.append(max(reaches[-1], start + offsets[-1]))
            starts.append(start)
            offsets.append(offset)
    stops = [*starts[1:], end]
    spans = [Span(*parts) for parts in zip(starts, stops, offsets, reaches, strict=True)]
    return _Timeline(end, spans, starts, reaches)
