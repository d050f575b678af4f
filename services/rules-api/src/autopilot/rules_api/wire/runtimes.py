"""Runtimes over the wire, as the workspace sees them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from autopilot.domain.ids import RuntimeId, UserId
from autopilot.rules_api.wire.common import Body, Name, SeenVersion


class RuntimePatch(Body, frozen=True, kw_only=True):
    """What people may change of a runtime. Its machine goes on under the name that it registers with."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    concurrency_limit: (
        Annotated[
            int,
            msgspec.Meta(
                ge=1, le=1000, description="Fewer tasks than the machine would take; null: as it says"
            ),
        ]
        | msgspec.UnsetType
        | None
    ) = msgspec.UNSET
    version: SeenVersion | msgspec.UnsetType = msgspec.UNSET


class RuntimeView(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime; `unusable` means that the machine answers and the agent program cannot run (S4.3).

    `concurrency` is how many tasks the machine says it takes, `concurrency_limit` how many people allow it at most.
    `version` counts edits by people (If-Match).
    """

    id: RuntimeId
    name: str
    registered_by: UserId | None
    concurrency: int
    concurrency_limit: int | None
    capabilities: dict[str, Any]
    created_at: datetime
    version: int
    state: Literal["online", "offline", "unusable"]
    seen_at: datetime | None
    detail: str | None
    repair_hint: str | None
    can_edit: bool
