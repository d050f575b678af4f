"""Use cases take their locks from the top and never go back: rules before runs, a project before what names it (HAZARDS 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest
from tests.support import rules as world
from tests.support.dispatching import admit_one, assert_coherent, drain, execute, fetch, row, worker

from autopilot.domain.errors import InvalidValue
from autopilot.domain.ids import AutopilotId, IssueId, ProjectId, WorkspaceId
from autopilot.domain.states import IssueStatus
from autopilot.engine import finish, rules
from autopilot.engine.issues import IssueEdit, edit_issue
from autopilot.engine.overlap import lock_for_finish
from autopilot.engine.rule_access import find_rule
from autopilot.engine.rules import AutopilotEdit
from autopilot.kit.ids import uuid7
from autopilot.storage import projects
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention

# In this database: tests of another worker have their own on the same server. Within one transaction it tells always the same.
SOMEBODY_WAITS = """
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"""
EDIT = IssueEdit(title="Another title", status=IssueStatus.DONE)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test", settings={"lock_timeout": "500"}) as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> world.Setting:
    return await world.make_setting(database)


async def make_project(database: Database, setting: world.Setting) -> ProjectId:
    project_id = ProjectId(uuid7())
    async with database.transaction() as conn:
        await projects.insert_project(
            conn,
            project_id=project_id,
            workspace_id=setting.workspace_id,
            name="site",
            created_by=setting.owner_id,
        )
    return project_id


async def make_issue(database: Database, autopilot_id: AutopilotId) -> IssueId:
    run_id = await admit_one(database, autopilot_id)
    await drain(worker(database))
    return IssueId((await row(database, "autopilot_run", run_id))["issue_id"])


async def is_free(database: Database, autopilot_id: AutopilotId) -> bool:
    """Whether nobody holds the rule."""
    try:
        await execute(
            database, "SELECT 1 FROM autopilot WHERE id = $1 FOR NO KEY UPDATE NOWAIT", autopilot_id
        )
    except Contention:
        return False
    return True


async def test_an_edit_of_an_issue_never_locks_the_rule_after_the_run(
    database: Database, setting: world.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule's policy changes while an edit holds the run: an end of the run, which holds the rule, waits for it."""
    rule = await world.make_autopilot(database, setting)
    issue_id = await make_issue(database, rule.id)

    async def lock_and_change_policy(conn: Conn, ids: Collection[AutopilotId]) -> list[AutopilotId]:
        locked = await lock_for_finish(conn, ids)
        await execute(database, "UPDATE autopilot SET overlap_policy = 'skip' WHERE id = $1", rule.id)
        return locked

    monkeypatch.setattr(finish, "lock_for_finish", lock_and_change_policy)
    async with database.transaction() as conn:
        await edit_issue(conn, setting.workspace_id, issue_id, EDIT)
        assert await is_free(database, rule.id)
    issue = await row(database, "issue", issue_id)
    assert (issue["title"], issue["status"]) == (EDIT.title, "done")
    await assert_coherent(database)


async def test_an_edit_of_an_issue_waits_for_nobody_who_holds_its_project(
    database: Database, setting: world.Setting
) -> None:
    """Whoever deletes the project holds it while waiting for the issue, so the edit must not want it."""
    project_id = await make_project(database, setting)
    rule = await world.make_autopilot(database, setting, project_id=project_id)
    issue_id = await make_issue(database, rule.id)
    async with database.transaction() as deleting:
        await deleting.execute("SELECT 1 FROM project WHERE id = $1 FOR UPDATE", project_id)
        async with database.transaction() as conn:
            await edit_issue(conn, setting.workspace_id, issue_id, EDIT)
    assert (await row(database, "issue", issue_id))["status"] == "done"


async def test_a_project_that_goes_takes_its_rules_in_id_order(
    database: Database, setting: world.Setting
) -> None:
    project_id = await make_project(database, setting)
    first, second = AutopilotId(uuid7()), AutopilotId(uuid7())
    for rule_id in (second, first):  # so that the rows do not lie in the order of their ids
        await world.make_autopilot(database, setting, id=rule_id, project_id=project_id)

    async def remove() -> None:
        async with database.transaction() as conn:
            await conn.execute("SET LOCAL lock_timeout = 0")
            await projects.lock_project(conn, setting.workspace_id, project_id)
            await projects.delete_project(conn, project_id)

    async with database.transaction() as conn:
        await conn.execute("SELECT 1 FROM autopilot WHERE id = $1 FOR NO KEY UPDATE", first)
        removing = asyncio.create_task(remove())
        async with asyncio.timeout(30):
            while not await fetch(database, SOMEBODY_WAITS):
                await asyncio.sleep(0)
        assert await is_free(database, second)
    await removing
    assert [(await row(database, "autopilot", rule))["project_id"] for rule in (first, second)] == [
        None,
        None,
    ]


async def test_a_project_that_went_during_an_edit_that_names_it_is_refused(
    database: Database, setting: world.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.7: the field is refused by name, though the rule had this very project when the edit began."""
    project_id = await make_project(database, setting)
    rule = await world.make_autopilot(database, setting, project_id=project_id)

    async def find_and_remove(conn: Conn, workspace_id: WorkspaceId, autopilot_id: AutopilotId) -> Autopilot:
        found = await find_rule(conn, workspace_id, autopilot_id)
        async with database.transaction() as other:
            await projects.lock_project(other, setting.workspace_id, project_id)
            await projects.delete_project(other, project_id)
        return found

    monkeypatch.setattr(rules, "find_rule", find_and_remove)
    with pytest.raises(InvalidValue) as refused:
        async with database.transaction() as conn:
            await rules.update_autopilot(
                conn, setting.workspace_id, rule.id, setting.owner_id, AutopilotEdit(project_id=project_id)
            )
    assert refused.value.field == "project_id"
