"""Runtimes over the wire, as the workspace sees them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from autopilot.domain.ids import RuntimeId, UserId


class RuntimeView(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime; `unusable` means that the machine answers and the agent program cannot run (S4.3)."""

    id: RuntimeId
    name: str
    registered_by: UserId | None
    concurrency: int
    capabilities: dict[str, Any]
    created_at: datetime
    state: Literal["online", "offline", "unusable"]
    seen_at: datetime | None
    detail: str | None
    repair_hint: str | None
