"""Identifiers and randomness: time-ordered ids, lease tokens, API tokens and jitter."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from uuid import UUID, SafeUUID, uuid4

_COUNTER_LIMIT = 1 << 42
_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_SAFETY = SafeUUID.unknown
_make, _set = UUID.__new__, object.__setattr__


class _Sequence:
    """Milliseconds and a 42-bit counter that together only ever rise, whatever the host clock does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._counter = 0
        # An id is unique, not secret (tokens are), so it can do without a system call.
        self._draw = random.Random(os.urandom(32)).getrandbits  # noqa: S311 - uniqueness, not secrecy

    def next(self) -> int:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms > self._milliseconds:
                self._milliseconds = now_ms
                # The top bit starts clear, which leaves room for 2**41 ids within one millisecond.
                self._counter = counter = self._draw(41)
            else:
                self._counter = counter = self._counter + 1
                if counter == _COUNTER_LIMIT:
                    self._milliseconds += 1
                    self._counter = counter = self._draw(41)
            return (
                (self._milliseconds << 80)
                | ((counter >> 30) << 64)
                | ((counter & 0x3FFF_FFFF) << 32)
                | self._draw(32)
                | _VERSION_AND_VARIANT
            )


_sequence = _Sequence()


def _restart_after_fork() -> None:
    global _sequence
    _sequence = _Sequence()


os.register_at_fork(after_in_child=_restart_after_fork)


def uuid7() -> UUID:
    """A new RFC 9562 version 7 id; within one process each is greater than the one before."""
    # UUID's own constructor looks at every way to give one, which takes as long as all the rest.
    made = _make(UUID)
    _set(made, "int", _sequence.next())
    _set(made, "is_safe", _SAFETY)
    return made


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
