"""S9.1, S9.6: tokens, and what is kept of the headers."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from autopilot.domain.webhook import tokens


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_a_token_looks_like_one(random32: bytes) -> None:
    assert tokens.looks_like_token(tokens.new_webhook_token(random32))


def test_a_token_is_url_safe_base64_of_its_bytes() -> None:
    assert tokens.new_webhook_token(b"\xff\xef" * 16) == "awt__-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-8"
    with pytest.raises(ValueError, match="32 bytes"):
        tokens.new_webhook_token(b"short")


@pytest.mark.parametrize(
    "text", ["", "awt_", "awt_" + "a" * 42, "awt_" + "a" * 44, "awt_" + "é" * 43, "awt_" + "a" * 43 + "\n"]
)
def test_anything_else_does_not(text: str) -> None:
    assert not tokens.looks_like_token(text)


def test_a_token_is_known_by_its_hash_and_a_secret_by_its_last_characters() -> None:
    assert tokens.token_hash("awt_x") == hashlib.sha256(b"awt_x").digest()
    assert tokens.hint("0123456789abcdef") == "cdef"


def test_of_the_headers_only_the_harmless_are_kept() -> None:
    headers = CIMultiDict(
        {
            "content-type": "application/json",
            "user-agent": "GitHub-Hookshot/\udcff" + "x" * 400,
            "x-github-event": "push",
            "x-github-delivery": "d1",
            "x-hub-signature-256": "sha256=c0ffee",
            "authorization": "Bearer hunter2",
            "cookie": "a=b",
        }
    )
    stored = tokens.stored_headers(headers)
    assert stored.pop("User-Agent") == "GitHub-Hookshot/?" + "x" * 283
    assert stored == {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": "d1",
        "X-Hub-Signature-256": "present",
    }
