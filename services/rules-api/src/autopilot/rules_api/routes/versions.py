"""The published history of an autopilot (S5.4)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.ids import AutopilotId
from autopilot.engine.rule_access import find_rule
from autopilot.rules_api.endpoint import Call, get
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.versions import VersionView, show_version
from autopilot.storage import collaborators, versions

_LARGEST = 2**31 - 1


async def list_versions(call: Call, autopilot_id: UUID, query: PageQuery) -> Page[VersionView]:
    """Newest first."""
    # Versions are numbered, so the cursor holds a number in the place of an id.
    before = min(query.before.int, _LARGEST) if query.before is not None else None
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
        found = await versions.list_versions(
            conn, rule.workspace_id, rule.id, before=before, limit=query.fetch
        )
    can_write = rights_of(rule, granted, call.caller).can_write
    return page_of(
        found,
        query,
        lambda version: UUID(int=version.version),
        lambda version: show_version(version, can_write=can_write),
    )


ROUTES = (get("/api/autopilots/{autopilot_id}/versions", list_versions),)
