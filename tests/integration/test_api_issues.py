"""Issues and tasks over REST: any member edits, talks and cancels, and the run follows (S6.8, S11.1, S11.6)."""

from __future__ import annotations

import pytest
from tests.support.api import Api, ids
from tests.support.dispatching import assert_coherent, fetch
from tests.support.work import Shop, make_shop

from autopilot.domain.permissions import TokenKind
from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import uuid7

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def test_an_issue_is_found_by_id_number_and_key(api: Api, shop: Shop) -> None:
    started = await shop.start(ISSUE)
    names: list[object] = [started.issue_id, 1, "AUT-1", "aut-1"]
    for name in names:
        found = (await shop.owner("GET", f"/api/issues/{name}")).body
        assert (found["id"], found["key"], found["number"]) == (str(started.issue_id), "AUT-1", 1)
        assert found["origin_run_id"] == str(started.run_id)
    other = await api.place("other")
    for name in names:
        assert (await other.owner("GET", f"/api/issues/{name}")).status == 404
    for name in [uuid7(), 2, 0, "XYZ-1", "AUT-", "AUT-1-1", "9" * 19]:
        assert (await shop.owner("GET", f"/api/issues/{name}")).problem() == (404, "not_found", None), name


async def test_issues_are_listed_newest_first_by_state_and_rule(shop: Shop) -> None:
    first, second = await shop.start(ISSUE), await shop.start(ISSUE)
    assert ids(await shop.owner("GET", "/api/issues")) == [second.issue_id, first.issue_id]
    await shop.owner("PATCH", "/api/issues/1", {"status": "done"})
    assert ids(await shop.owner("GET", "/api/issues?status=done")) == [first.issue_id]
    assert ids(await shop.owner("GET", f"/api/issues?autopilot={second.autopilot_id}")) == [second.issue_id]
    assert (await shop.owner("GET", "/api/issues?status=open")).problem()[::2] == (422, "status")


async def test_any_member_closes_an_issue_and_its_run_completes(api: Api, shop: Shop) -> None:
    """S11.1."""
    started = await shop.start(ISSUE)
    task = await shop.held(started)
    _, mia = await api.joined(shop.place, "mia")
    closed = await mia("PATCH", "/api/issues/AUT-1", {"status": "done"})
    assert (closed.status, closed.body["status"]) == (200, "done")
    assert closed.body["closed_at"] is not None
    assert (await shop.owner("GET", started.path)).body["status"] == "completed"
    assert (await shop.machine.renew(task))[0]["state"] == "cancelled"
    await assert_coherent(shop.database)


async def test_an_edit_that_comes_second_is_refused(shop: Shop) -> None:
    """S13.2."""
    await shop.start(ISSUE)
    seen = (await shop.owner("GET", "/api/issues/1")).body["version"]
    edited = await shop.owner("PATCH", "/api/issues/1", {"title": "Other", "version": seen})
    assert (edited.body["title"], edited.body["version"]) == ("Other", seen + 1)
    assert edited.headers["Etag"] == f'"{seen + 1}"'
    late = await shop.owner("PATCH", "/api/issues/1", {"status": "done"}, headers={"If-Match": f'"{seen}"'})
    assert late.problem() == (409, "edit_conflict", None)
    same = await shop.owner("PATCH", "/api/issues/1", {"title": "Other", "status": "todo"})
    assert same.body["version"] == seen + 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"status": "open"}, (422, "invalid_value", "status")),
        ({"title": " "}, (422, "invalid_value", "title")),
        ({"title": "x" * 256}, (422, "invalid_value", "title")),
        ({"body": "x"}, (400, "malformed", "body")),
    ],
)
async def test_what_an_edit_refuses(shop: Shop, body: object, problem: tuple[int, str, str]) -> None:
    await shop.start(ISSUE)
    assert (await shop.owner("PATCH", "/api/issues/1", body)).problem() == problem


async def test_a_deleted_issue_is_gone_and_its_run_fails(shop: Shop) -> None:
    started = await shop.start(ISSUE)
    assert (await shop.owner("DELETE", "/api/issues/1")).status == 204
    assert (await shop.owner("DELETE", "/api/issues/1")).status == 404
    run = (await shop.owner("GET", started.path)).body
    assert (run["status"], run["reason_code"], run["issue_id"]) == (
        "failed",
        "issue_deleted",
        str(started.issue_id),
    )
    await assert_coherent(shop.database)


async def test_what_is_said_on_an_issue(api: Api, shop: Shop) -> None:
    started = await shop.start(ISSUE)
    task = await shop.held(started)
    mia_id, mia = await api.joined(shop.place, "mia")
    said = await mia("POST", "/api/issues/AUT-1/comments", {"body": "Looks odd."})
    assert (said.status, said.body["author_type"], said.body["author_id"]) == (201, "user", str(mia_id))
    await shop.machine.call(task, "complete", result="Fixed.")
    comments = (await shop.owner("GET", "/api/issues/1/comments")).body["items"]
    assert [(one["author_type"], one["body"]) for one in comments] == [
        ("agent", "Fixed."),
        ("user", "Looks odd."),
    ]
    page = await shop.owner("GET", "/api/issues/1/comments?limit=1")
    cursor = page.body["next_cursor"]
    rest = await shop.owner("GET", f"/api/issues/1/comments?limit=1&cursor={cursor}")
    assert [one["body"] for one in rest.body["items"]] == ["Looks odd."]
    assert (await mia("POST", "/api/issues/1/comments", {"body": "é" * 32_769})).problem()[::2] == (
        422,
        "body",
    )
    assert (await mia("POST", "/api/issues/1/comments", {"body": " "})).problem()[::2] == (422, "body")


async def test_a_service_token_only_reads(api: Api, shop: Shop) -> None:
    """S13.6."""
    started = await shop.start(ISSUE)
    service = await api.program(shop.place, TokenKind.SERVICE)
    assert (await service("GET", "/api/issues/1")).status == 200
    assert (await service("GET", f"/api/tasks/{started.task_id}")).status == 200
    writes = [
        ("PATCH", "/api/issues/1"),
        ("DELETE", "/api/issues/1"),
        ("POST", "/api/issues/1/comments"),
        ("POST", f"/api/tasks/{started.task_id}/cancel"),
    ]
    for method, path in writes:
        assert (await service(method, path, {})).problem()[:2] == (403, "wrong_token_kind")


async def test_tasks_are_shown_without_their_prompt_and_lease_token(shop: Shop) -> None:
    """S6.5: a prompt may hold a payload."""
    bare, issue = await shop.start(BARE), await shop.start(ISSUE)
    task = await shop.held(bare)
    shown = (await shop.owner("GET", f"/api/tasks/{bare.task_id}")).body
    assert (shown["status"], shown["run_id"], shown["issue_id"]) == ("running", str(bare.run_id), None)
    assert not {"prompt", "lease_token", "claim_id"} & shown.keys()
    assert task["lease_token"] not in str(shown)
    assert ids(await shop.owner("GET", "/api/tasks")) == [issue.task_id, bare.task_id]
    assert ids(await shop.owner("GET", "/api/tasks?status=running")) == [bare.task_id]
    assert ids(await shop.owner("GET", f"/api/tasks?issue={issue.issue_id}")) == [issue.task_id]
    assert ids(await shop.owner("GET", f"/api/tasks?agent={uuid7()}")) == []


async def test_any_member_cancels_a_task(api: Api, shop: Shop) -> None:
    """S6.8, S11.6: the last one cancelled fails the run; cancelling again shows it as it is."""
    started = await shop.start(ISSUE)
    task = await shop.held(started)
    _, mia = await api.joined(shop.place, "mia")
    for _ in range(2):
        answer = await mia("POST", f"/api/tasks/{started.task_id}/cancel")
        assert (answer.status, answer.body["status"]) == (200, "cancelled")
    run = (await shop.owner("GET", started.path)).body
    assert (run["status"], run["reason_code"]) == ("failed", "task_cancelled")
    assert (await shop.machine.renew(task))[0]["state"] == "cancelled"
    assert await shop.machine.call(task, "complete") == (
        200,
        {"status": "cancelled", "changed": False, "retry": False},
    )
    await assert_coherent(shop.database)


async def test_tasks_of_other_workspaces_do_not_exist(api: Api, shop: Shop) -> None:
    """S6.6."""
    started = await shop.start(BARE)
    other = await api.place("other")
    assert (await other.owner("GET", f"/api/tasks/{started.task_id}")).status == 404
    assert (await other.owner("POST", f"/api/tasks/{started.task_id}/cancel")).status == 404
    assert ids(await other.owner("GET", "/api/tasks")) == []
    assert (await fetch(shop.database, "SELECT status FROM agent_task"))[0]["status"] == "queued"
