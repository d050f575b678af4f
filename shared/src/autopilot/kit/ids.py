"""Identifiers and randomness: time-ordered ids, lease tokens, API tokens and jitter."""

from __future__ import annotations

import os
import secrets
import threading
import time
from uuid import UUID, uuid4

_COUNTER_BITS = 42
_COUNTER_LIMIT = 1 << _COUNTER_BITS
_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)


class _Sequence:
    """Milliseconds and a 42-bit counter that only ever rises, whatever the host clock does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._counter = 0

    def next(self, now_ms: int, entropy: int) -> tuple[int, int]:
        with self._lock:
            if now_ms > self._milliseconds:
                self._milliseconds = now_ms
                # The top bit starts clear, which leaves room for 2**41 ids within one millisecond.
                self._counter = entropy & (_COUNTER_LIMIT // 2 - 1)
            else:
                self._counter += 1
                if self._counter == _COUNTER_LIMIT:
                    self._milliseconds += 1
                    self._counter = entropy & (_COUNTER_LIMIT // 2 - 1)
            return self._milliseconds, self._counter


_sequence = _Sequence()


def uuid7() -> UUID:
    """A new RFC 9562 version 7 id; within one process each is greater than the one before."""
    entropy = int.from_bytes(os.urandom(10), "big")
    milliseconds, counter = _sequence.next(time.time_ns() // 1_000_000, entropy >> 32)
    return UUID(
        int=(milliseconds << 80)
        | ((counter >> 30) << 64)
        | ((counter & 0x3FFF_FFFF) << 32)
        | (entropy & 0xFFFF_FFFF)
        | _VERSION_AND_VARIANT
    )


def random_token() -> UUID:
    """A random lease token, which tells nothing and repeats nothing."""
    return uuid4()


def random_bytes(count: int) -> bytes:
    """Bytes from the operating system's generator, fit for secrets."""
    return os.urandom(count)


def new_api_token(prefix: str) -> str:
    """`prefix` followed by the URL-safe base64 of 32 random bytes (S9.1), such as `awt_…`."""
    return prefix + secrets.token_urlsafe(32)


def jitter(base_s: float, fraction: float) -> float:
    """A number of seconds drawn evenly from `base_s` ± `fraction`, so that replicas do not march in step."""
    unit = int.from_bytes(os.urandom(4), "big") / 0xFFFF_FFFF
    return base_s * (1.0 + fraction * (2.0 * unit - 1.0))
