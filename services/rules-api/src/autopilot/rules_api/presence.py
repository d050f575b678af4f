"""PATCH by presence: what was not sent is not touched, and `null` is a value (S13.2)."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def sent(value: T | msgspec.UnsetType, present: T) -> T:
    """The value that was sent, else the present one."""
    return present if isinstance(value, msgspec.UnsetType) else value


def is_sent(value: object) -> bool:
    """Whether the field was in the body at all."""
    return value is not msgspec.UNSET
