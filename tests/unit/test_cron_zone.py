"""Timezones come from the shipped data, by exact name, with exact offsets (S8.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.domain.cron import InvalidTimezone, Zone, next_after, parse, tzdata_version, zone, zone_names
from autopilot.domain.cron_zone import _transitions

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("Factory", "names no place"),
        ("localtime", "names no place"),
        ("Local", "names no place"),
        ("local", "names no place"),
        ("posixrules", "names no place"),
        ("+08:00", "is an offset"),
        ("-5", "is an offset"),
        ("UTC+8", "is an offset"),
        ("gmt-3", "is an offset"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("Europe/berlin ", "did you mean 'Europe/Berlin'?"),
        ("Berlin", "did you mean 'Europe/Berlin'?"),
        ("Europe/Berln", "did you mean 'Europe/Berlin'?"),
        ("America/New York", "did you mean 'America/New_York'?"),
        ("utc", "did you mean 'UTC'?"),
        ("Mars/Olympus_Mons", "is not an IANA timezone"),
        ("../../etc/passwd", "is not an IANA timezone"),
        ("/etc/localtime", "is not an IANA timezone"),
        ("Europe", "is not an IANA timezone"),
        ("Europe/Berlin\x00", "is not an IANA timezone"),
        ("x" * 100_000, "is not an IANA timezone"),
    ],
)
def test_what_is_no_exact_name_is_refused(name: str, said: str) -> None:
    """S8.2"""
    with pytest.raises(InvalidTimezone) as refused:
        zone(name)
    assert said in refused.value.message
    assert len(refused.value.message) < 200
    assert (refused.value.field, refused.value.code) == ("timezone", "invalid_timezone")


def test_every_shipped_zone_loads_and_gives_a_next_time() -> None:
    """S8.2"""
    noon = parse("0 12 * * *")
    assert len(zone_names()) > 500
    for name in zone_names():
        found = next_after(noon, zone(name), datetime(2026, 6, 1, tzinfo=UTC))
        assert found is not None
        assert found.astimezone(zone(name).info).hour == 12


def test_listed_changes_end_before_zones_repeat_and_the_last_stands_alone() -> None:
    """S8.5: the search computes one cycle of 400 years, from 2100 on."""
    limit = (datetime(2100, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()
    for name in zone_names():
        tzif = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
        listed = _transitions(tzif)
        assert max(listed, default=0) < limit
        assert all(later - earlier > 5 * 86_400 for earlier, later in pairwise(listed[-2:]))


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(zone_names())),
    second=st.integers(-4_000_000_000, 20_000_000_000),
)
def test_the_spans_agree_with_zoneinfo(name: str, second: int) -> None:
    """S8.2: from 1843 to 2603."""
    span = zone(name).span(second)
    assert span.start <= second < span.stop
    shown = (EPOCH + timedelta(seconds=second)).astimezone(zone(name).info).utcoffset()
    assert shown == timedelta(seconds=span.offset)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(zone_names())),
    seconds=st.lists(st.integers(800_000_000, 2_300_000_000), min_size=2, max_size=6),
)
def test_a_span_does_not_depend_on_what_was_asked_before(name: str, seconds: list[int]) -> None:
    """S8.3: from 1995 to 2042, across listed changes and those by rule."""
    used = zone(name)
    for second in seconds:
        tzif = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
        fresh = Zone(name, tzif).span(second)
        span = used.span(second)
        assert span.offset == fresh.offset
        assert span.start <= second < span.stop


def test_the_version_is_that_of_the_shipped_data() -> None:
    assert tzdata_version() == version("tzdata")


def test_the_data_of_the_host_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8.2: a host without zones, or with others, changes nothing."""
    monkeypatch.setattr("zoneinfo.TZPATH", ())
    zone.cache_clear()
    assert zone("Asia/Kolkata").info.key == "Asia/Kolkata"
