"""The REST application: every route of every resource, behind one middleware."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from aiohttp import web

from autopilot.kit import http
from autopilot.rules_api import decode, docs_page, event_feed, openapi, waiting
from autopilot.rules_api.deps import DEPS, Deps
from autopilot.rules_api.endpoint import Route, bind
from autopilot.rules_api.problems import to_problem
from autopilot.rules_api.routes import (
    agents,
    autopilots,
    collaborators,
    cron_preview,
    deliveries,
    events,
    explain,
    inbox,
    issues,
    members,
    projects,
    runs,
    runtime,
    runtimes,
    scheduler,
    squads,
    tasks,
    tokens,
    triggers,
    versions,
    workspaces,
)

ROUTES: tuple[Route, ...] = (
    *agents.ROUTES,
    *autopilots.ROUTES,
    *collaborators.ROUTES,
    *cron_preview.ROUTES,
    *deliveries.ROUTES,
    *events.ROUTES,
    *explain.ROUTES,
    *inbox.ROUTES,
    *issues.ROUTES,
    *members.ROUTES,
    *projects.ROUTES,
    *runs.ROUTES,
    *runtime.ROUTES,
    *runtimes.ROUTES,
    *scheduler.ROUTES,
    *squads.ROUTES,
    *tasks.ROUTES,
    *tokens.ROUTES,
    *triggers.ROUTES,
    *versions.ROUTES,
    *workspaces.ROUTES,
)


_SERVER: Final = f"autopilot/{metadata.version('autopilot-rules-api')}"


def make_app(deps: Deps) -> web.Application:
    """The application; it owns nothing of `deps`."""
    app = web.Application(
        middlewares=[http.server_middleware(to_problem=to_problem)], client_max_size=decode.MAX_BODY_BYTES
    )
    app[DEPS] = deps
    waiting.attach(app, deps)
    event_feed.attach(app, deps)
    app.add_routes([bind(deps, route) for route in ROUTES])
    app.on_response_prepare.append(_name_version)
    openapi.attach(app, ROUTES)
    docs_page.attach(app, ROUTES)
    return app


async def _name_version(_request: web.Request, response: web.StreamResponse) -> None:
    """Say which version answers, so that a command of another one can tell which of the two is old."""
    response.headers["Server"] = _SERVER
