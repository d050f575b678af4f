"""When a cron expression will fire, before anybody saves it (S8.6)."""

from __future__ import annotations

from autopilot.domain import cron
from autopilot.domain.cron_words import describe
from autopilot.kit.http import Problem
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.problems import Code
from autopilot.rules_api.wire.cron_preview import CronPreview, CronPreviewQuery
from autopilot.storage import facts


async def preview_cron(call: Call, query: CronPreviewQuery) -> CronPreview:
    """For any member; the timezone is judged first."""
    try:
        zone = cron.zone(query.tz)
    except cron.InvalidTimezone as error:
        raise Problem(400, error.code, error.message, field="tz") from error
    try:
        schedule = cron.parse(query.expr)
    except cron.InvalidCron as error:
        raise Problem(400, error.code, error.message, field="expr") from error
    after = query.after
    if after is None:
        async with call.database.connection() as conn:
            after = await facts.database_now(conn)
    return CronPreview(
        next_runs=cron.occurrences(schedule, zone, after, limit=query.count),
        description=describe(schedule, zone, after),
    )


ROUTES = (
    get(
        "/api/autopilots/cron-preview",
        preview_cron,
        refusals=((400, Code.INVALID_CRON), (400, Code.INVALID_TIMEZONE)),
    ),
)
