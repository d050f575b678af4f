"""The cron preview over the wire (S8.6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from autopilot.rules_api.wire.common import Query


class CronPreviewQuery(Query, frozen=True, kw_only=True):
    """`after` is an RFC 3339 instant, by default the database's now."""

    expr: str = ""
    tz: str = "UTC"
    count: Annotated[int, msgspec.Meta(ge=1, le=50)] = 3
    after: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class CronPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The next occurrences in UTC; fewer than asked for, or none, if there are no more ever.

    `description` says the schedule in plain words, with the first clock change after `after` that matters to it.
    """

    next_runs: list[datetime]
    description: str
