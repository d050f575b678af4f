"""Ids rise, tokens do not repeat, jitter stays within its bounds."""

from __future__ import annotations

import time
from uuid import RFC_4122

import pytest

from autopilot.kit import ids


def test_ids_of_one_process_only_rise() -> None:
    made = [ids.uuid7() for _ in range(50_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_id_is_a_version_7_of_this_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.uuid7()
    assert (made.version, made.variant) == (7, RFC_4122)
    assert 0 <= (made.int >> 80) - before < 5_000


def test_ids_rise_though_the_host_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.4."""
    first = ids.uuid7()
    an_hour_ago = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_ago)
    assert ids.uuid7() > first


def test_a_full_counter_moves_on_to_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = ids._Sequence()
    monkeypatch.setattr(time, "time_ns", lambda: 5 * 10**6)
    first = sequence.next()
    sequence._counter = (1 << 42) - 1
    assert first >> 80 == 5
    assert sequence.next() >> 80 == 6


def test_a_forked_child_draws_other_numbers_than_its_parent() -> None:
    before = ids._sequence
    ids._restart_after_fork()
    assert ids._sequence is not before
    assert ids._sequence._draw(128) != before._draw(128)


def test_an_api_token_is_its_prefix_and_32_random_bytes() -> None:
    """S9.1."""
    token = ids.new_api_token("awt_")
    assert token.startswith("awt_")
    assert len(token) == 4 + 43
    assert token != ids.new_api_token("awt_")


def test_jitter_stays_within_its_fraction() -> None:
    drawn = [ids.jitter(10.0, 0.2) for _ in range(1000)]
    assert 8.0 <= min(drawn) < 9.0
    assert 11.0 < max(drawn) <= 12.0
