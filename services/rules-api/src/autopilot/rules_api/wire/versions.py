"""Rule versions over the wire: who published what (S5.4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from autopilot.domain.ids import RuleVersionId, UserId
from autopilot.storage.versions import RuleVersion

_FINGERPRINTS = ("secret_fingerprint", "url_fingerprint")


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One publication. `published_by` is null for the system; `edited_by` made the edit; `rule` is the whole rule then."""

    id: RuleVersionId
    version: int
    publisher_type: Literal["user", "system"]
    published_by: UserId | None
    edited_by: UserId | None
    change: str
    published_at: datetime
    rule: dict[str, Any]


def show_version(version: RuleVersion, *, can_write: bool) -> VersionView:
    """Without the right to write even a fingerprint is left out: it would let a weak secret be guessed at leisure."""
    rule = dict(version.rule)
    if not can_write:
        rule["triggers"] = [
            {name: value for name, value in trigger.items() if name not in _FINGERPRINTS}
            for trigger in rule["triggers"]
        ]
    return VersionView(
        id=version.id,
        version=version.version,
        publisher_type=version.publisher_type,
        published_by=version.published_by,
        edited_by=version.edited_by,
        change=version.change,
        published_at=version.published_at,
        rule=rule,
    )
