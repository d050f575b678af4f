"""Projects (S6.8: any member creates, its creator or an admin edits)."""

from __future__ import annotations

from uuid import UUID

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import ProjectId
from autopilot.domain.permissions import Action
from autopilot.engine.revisions import check_rev
from autopilot.kit.ids import uuid7
from autopilot.rules_api.auth import Caller
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.problems import Code
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.projects import ProjectCreate, ProjectPatch, ProjectView
from autopilot.storage import projects
from autopilot.storage.database import Conn
from autopilot.storage.projects import Project


async def create_project(call: Call, body: ProjectCreate) -> ProjectView:
    caller = call.caller
    caller.require(Action.PROJECT_CREATE)
    project_id = ProjectId(uuid7())
    async with call.database.transaction() as conn:
        await projects.insert_project(
            conn,
            project_id=project_id,
            workspace_id=caller.workspace_id,
            name=body.name,
            created_by=caller.person,
        )
        return _show(await _find(conn, caller, project_id), caller)


async def list_projects(call: Call, query: PageQuery) -> Page[ProjectView]:
    async with call.database.connection() as conn:
        found = await projects.list_projects(
            conn, call.caller.workspace_id, before=query.before, limit=query.fetch
        )
    return page_of(found, query, lambda project: project.id, lambda project: _show(project, call.caller))


async def get_project(call: Call, project_id: UUID) -> ProjectView:
    async with call.database.connection() as conn:
        return _show(await _find(conn, call.caller, project_id), call.caller)


async def update_project(call: Call, project_id: UUID, body: ProjectPatch) -> ProjectView:
    caller, expected_rev = call.caller, expected_version(call, body.version)

    async def edit(conn: Conn) -> ProjectView:
        project = await _find_to_edit(conn, caller, project_id)
        check_rev(project.rev, expected_rev)
        await projects.rename_project(conn, project.id, sent(body.name, project.name))
        return _show(await _find(conn, caller, project_id), caller)

    return await call.database.transact(edit)


async def delete_project(call: Call, project_id: UUID) -> None:
    """Rules and issues of the project stay, without one (S4.7)."""
    caller, expected_rev = call.caller, expected_version(call)

    async def remove(conn: Conn) -> None:
        project = await _find_to_edit(conn, caller, project_id)
        check_rev(project.rev, expected_rev)
        await projects.delete_project(conn, project.id)

    await call.database.transact(remove)


async def _find_to_edit(conn: Conn, caller: Caller, project_id: UUID) -> Project:
    await projects.lock_project(conn, caller.workspace_id, project_id)
    project = await _find(conn, caller, project_id)
    caller.require(Action.PROJECT_EDIT, is_creator=project.created_by == caller.user_id)
    return project


async def _find(conn: Conn, caller: Caller, project_id: UUID) -> Project:
    project = await projects.find_project(conn, caller.workspace_id, project_id)
    if project is None:
        raise NotFound
    return project


def _show(project: Project, caller: Caller) -> ProjectView:
    return ProjectView(
        id=project.id,
        name=project.name,
        created_by=project.created_by,
        created_at=project.created_at,
        version=project.rev,
        can_edit=caller.may(Action.PROJECT_EDIT, is_creator=project.created_by == caller.user_id),
    )


ROUTES = (
    post("/api/projects", create_project, right=Action.PROJECT_CREATE, refusals=(Code.NAME_TAKEN,)),
    get("/api/projects", list_projects),
    get("/api/projects/{project_id}", get_project),
    patch(
        "/api/projects/{project_id}", update_project, right=Action.PROJECT_EDIT, refusals=(Code.NAME_TAKEN,)
    ),
    delete("/api/projects/{project_id}", delete_project, right=Action.PROJECT_EDIT, versioned=True),
)
