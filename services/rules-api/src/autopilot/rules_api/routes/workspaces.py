"""Workspaces: one's own list, and the one that is worked in."""

from __future__ import annotations

from autopilot.domain.errors import Forbidden, NotFound
from autopilot.domain.ids import WorkspaceId
from autopilot.domain.permissions import Action, Role
from autopilot.engine.revisions import check_rev
from autopilot.kit.ids import uuid7
from autopilot.rules_api.auth import checked_slug
from autopilot.rules_api.endpoint import Call, PersonCall, get, patch, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.workspaces import WorkspaceCreate, WorkspacePatch, WorkspaceView
from autopilot.storage import members, workspaces
from autopilot.storage.database import Conn
from autopilot.storage.workspaces import Workspace, WorkspaceOf


async def create_workspace(call: PersonCall, body: WorkspaceCreate) -> WorkspaceView:
    """The person becomes its owner."""
    if call.session.bound_to is not None:
        raise Forbidden("A token bound to one workspace makes no other.", code="wrong_token_kind")
    async with call.database.transaction() as conn:
        made = await workspaces.insert_workspace(
            conn,
            workspace_id=WorkspaceId(uuid7()),
            slug=checked_slug(body.slug),
            name=body.name,
            issue_prefix=body.issue_prefix,
        )
        await members.insert_member(conn, made.id, call.session.person, Role.OWNER)
    return _show(made, Role.OWNER)


async def list_workspaces(call: PersonCall, query: PageQuery) -> Page[WorkspaceView]:
    session = call.session
    async with call.database.connection() as conn:
        found = await workspaces.list_workspaces_of(
            conn, session.person, only=session.bound_to, before=query.before, limit=query.fetch
        )
    return page_of(found, query, lambda workspace: workspace.id, _show_mine)


async def get_workspace(call: Call) -> WorkspaceView:
    async with call.database.connection() as conn:
        return _show(await _find(conn, call), call.caller.role)


async def update_workspace(call: Call, body: WorkspacePatch) -> WorkspaceView:
    call.caller.require(Action.WORKSPACE_EDIT)
    expected_rev = expected_version(call, body.version)
    async with call.database.transaction() as conn:
        await workspaces.lock_workspace(conn, call.caller.workspace_id)
        now = await _find(conn, call)
        check_rev(now.rev, expected_rev)
        await workspaces.update_workspace(
            conn,
            now.id,
            name=sent(body.name, now.name),
            attribution_policy=sent(body.attribution_policy, now.attribution_policy),
        )
        return _show(await _find(conn, call), call.caller.role)


async def _find(conn: Conn, call: Call) -> Workspace:
    found = await workspaces.find_workspace(conn, call.caller.workspace_id)
    if found is None:
        raise NotFound
    return found


def _show(workspace: Workspace, role: Role | None) -> WorkspaceView:
    return WorkspaceView(
        id=workspace.id,
        slug=workspace.slug,
        name=workspace.name,
        issue_prefix=workspace.issue_prefix,
        attribution_policy=workspace.attribution_policy,
        created_at=workspace.created_at,
        version=workspace.rev,
        role=role,
    )


def _show_mine(workspace: WorkspaceOf) -> WorkspaceView:
    return _show(workspace, workspace.role)


ROUTES = (
    post("/api/workspaces", create_workspace, right=Action.SELF, refusals=(Code.SLUG_TAKEN,)),
    get("/api/workspaces", list_workspaces, right=Action.SELF),
    get("/api/workspaces/current", get_workspace),
    patch("/api/workspaces/current", update_workspace, right=Action.WORKSPACE_EDIT),
)
