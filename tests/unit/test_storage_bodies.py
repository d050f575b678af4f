"""How bodies of webhooks are stored: every byte comes back (S9.3, S9.14)."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.storage.bodies import pack, unpack


@given(st.binary(max_size=2000), st.integers(1, 200))
def test_any_body_comes_back_byte_for_byte(piece: bytes, times: int) -> None:
    body = (piece * times)[: 256 * 1024]
    assert unpack(*pack(body)) == body


def test_a_body_of_text_shrinks_and_says_how_large_it_was() -> None:
    body = b'{"repository": "acme/site", "ref": "refs/heads/main"}' * 150
    stored, raw_size = pack(body)
    assert (len(stored) < len(body) / 10, raw_size) == (True, len(body))


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 511, os.urandom(4096)], ids=["0", "2", "511", "random"])
def test_what_would_not_shrink_is_stored_as_it_came(body: bytes) -> None:
    assert pack(body) == (body, None)
