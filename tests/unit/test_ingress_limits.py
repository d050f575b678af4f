"""Sliding minutes, tokens that were good lately, and who a caller is (S9.2)."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from structlog.testing import capture_logs

from autopilot.ingress.limits import Callers, GoodTokens, SlidingMinute


class Now:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_a_minute_holds_its_limit_and_says_exactly_when_there_is_room_again() -> None:
    """S9.2, S9.16: Retry-After is when the oldest charge leaves the minute, 1 to 60."""
    now = Now()
    minute = SlidingMinute(3, now)
    for _ in range(3):
        assert minute.wait_s("a") == 0
        minute.charge("a")
        now.seconds += 10
    assert minute.wait_s("a") == 30
    now.seconds += 29.5
    assert minute.wait_s("a") == 1
    now.seconds += 0.5
    assert minute.wait_s("a") == 0
    minute.charge("a")
    assert minute.wait_s("a") == 10


def test_a_burst_waits_a_whole_minute_at_most() -> None:
    now = Now()
    minute = SlidingMinute(2, now)
    minute.charge("a")
    minute.charge("a")
    assert minute.wait_s("a") == 60


def test_charges_beyond_the_limit_do_not_lengthen_the_wait_beyond_a_minute() -> None:
    """The debt gate is passed by good tokens, whose bad signatures are charged all the same."""
    now = Now()
    minute = SlidingMinute(2, now)
    for _ in range(50):
        minute.charge("a")
        now.seconds += 1
    assert minute.wait_s("a") == 58


def test_zero_is_no_limit() -> None:
    minute = SlidingMinute(0, Now())
    for _ in range(5000):
        minute.charge("a")
    assert minute.wait_s("a") == 0


def test_callers_are_counted_apart_and_the_longest_silent_is_forgotten_first() -> None:
    minute = SlidingMinute(1, Now(), max_keys=2)
    minute.charge("a")
    minute.charge("b")
    minute.charge("a")
    minute.charge("c")
    assert [minute.wait_s(key) for key in "abc"] == [60, 0, 60]


def test_what_is_older_than_the_minute_is_forgotten_as_others_come() -> None:
    """Bounded memory: what is kept grows with the requests of a minute, not with the addresses ever seen."""
    now = Now()
    minute = SlidingMinute(600, now)
    for number in range(1000):
        minute.charge(f"old {number}")
    now.seconds += 60
    for number in range(1000):
        minute.charge(f"new {number}")
    assert len(minute) == 1000
    assert minute.wait_s("new 0") == 0


def test_what_others_charged_counts_and_is_not_told_on() -> None:
    """S9.2: debt is shared between replicas; an echo of an echo would never end."""
    told: list[str] = []
    minute = SlidingMinute(5, Now(), tell=told.append)
    minute.heard("a", 3)
    minute.charge("a")
    assert minute.wait_s("a") == 0
    minute.charge("a")
    assert minute.wait_s("a") == 60
    minute.heard("b", 1_000_000)
    assert minute.wait_s("b") == 60
    assert told == ["a", "a"]


def test_a_minute_without_a_limit_tells_nothing() -> None:
    told: list[str] = []
    minute = SlidingMinute(0, Now(), tell=told.append)
    minute.charge("a")
    minute.heard("a", 7)
    assert (told, len(minute)) == ([], 0)


def test_a_good_token_is_told_when_it_turns_out_so_and_while_it_is_in_use() -> None:
    """Often enough that others always know it, and seldom."""
    now, told = Now(), list[bytes]()
    good = GoodTokens(now, tell=told.append)
    token = bytes(range(32))
    for _ in range(700):
        good.note(token)
        now.seconds += 1
    assert told == [token[:16]] * 3


def test_a_token_that_others_found_good_is_good_here_for_as_long() -> None:
    now, told = Now(), list[bytes]()
    good = GoodTokens(now, tell=told.append)
    token = bytes(range(32))
    good.heard(token[:16])
    now.seconds += 600
    assert token in good
    now.seconds += 0.1
    assert token not in good
    good.heard(token[:16])
    good.forget(token)
    assert token not in good
    assert told == []


def test_a_token_is_good_for_ten_minutes() -> None:
    now = Now()
    good = GoodTokens(now, max_tokens=2)
    good.note(b"t")
    now.seconds += 600
    assert b"t" in good
    now.seconds += 0.1
    assert b"t" not in good
    good.note(b"1")
    now.seconds += 2
    for token in (b"2", b"1", b"3"):
        good.note(token)
    assert [token in good for token in (b"1", b"2", b"3")] == [True, False, True]
    good.forget(b"3")
    good.forget(b"never seen")
    assert b"3" not in good


PROXIES = [ip_network("10.0.0.0/8"), ip_network("2001:db8:ff::/48")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "name"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.7, 10.0.0.8"], "10.0.0.7"),
        ("10.0.0.1", ["198.51.100.1:5555"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, garbage"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.66, garbage, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.66, " + "9" * 10_000], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.66" + ", 10.0.0.2" * 5_000], "10.0.0.2"),
        ("2001:db8:ff::1", ["[2001:db8:1:2:3:4:5:6]:443"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2::77", [], "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", [], "203.0.113.9"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fe80::1%eth0", [], "fe80::/64"),
        (None, [], ""),
    ],
)
def test_the_nearest_hop_that_is_not_ours_is_the_caller(
    peer: str | None, forwarded: list[str], name: str
) -> None:
    """S9.2: the right-most untrusted hop, IPv6 by its /64; whoever is not a listed proxy cannot choose a name."""
    assert Callers(PROXIES).name(peer, forwarded) == name


@pytest.mark.parametrize(
    ("peer", "forwarded", "name"),
    [
        ("10.0.0.1", ["for=198.51.100.1;proto=https;by=10.0.0.1"], "198.51.100.1"),
        ("10.0.0.1", ["for=192.0.2.66, Proto=http; For=198.51.100.1, for=10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ['for="[2001:db8:1:2:3:4:5:6]:443"'], "2001:db8:1:2::/64"),
        ("10.0.0.1", ['for="198.51.100.1:443"'], "198.51.100.1"),
        ("10.0.0.1", ['for="oh, no', "for=198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["for=192.0.2.66, for=unknown"], "10.0.0.1"),
        ("10.0.0.1", ["for=192.0.2.66, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["by=198.51.100.1"], "10.0.0.1"),
        ("203.0.113.9", ["for=198.51.100.1"], "203.0.113.9"),
    ],
)
def test_the_standard_header_is_read_where_it_is_the_one_believed(
    peer: str, forwarded: list[str], name: str
) -> None:
    """S9.2: an open quote of the caller's swallows no hop that a proxy added after it."""
    assert Callers(PROXIES, "Forwarded").name(peer, forwarded) == name


def test_a_forwarded_header_from_a_stranger_is_warned_of_once() -> None:
    """S9.2."""
    callers = Callers(PROXIES)
    with capture_logs() as logs:
        for _ in range(3):
            callers.name("203.0.113.9", ["198.51.100.1"])
    assert [entry["event"] for entry in logs] == ["forwarded_header_ignored"]
