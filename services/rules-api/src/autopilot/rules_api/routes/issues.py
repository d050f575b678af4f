"""Issues: listed, looked at by id, number or key, edited and talked about by any member (S6.8, S11.1, S11.6)."""

from __future__ import annotations

import re
from uuid import UUID

from autopilot.bus.subjects import wake_dispatch, wake_runtime
from autopilot.domain.errors import InvalidValue
from autopilot.domain.permissions import Action
from autopilot.engine import finish
from autopilot.engine.finish import Moved, NoSuchIssue
from autopilot.engine.issues import IssueEdit, edit_issue
from autopilot.kit.ids import uuid7
from autopilot.rules_api import auth
from autopilot.rules_api.endpoint import Call, delete, get, patch, post
from autopilot.rules_api.paging import Page, PageQuery, page_of
from autopilot.rules_api.presence import sent
from autopilot.rules_api.revisions import expected_version
from autopilot.rules_api.wire.issues import (
    MAX_COMMENT_BYTES,
    CommentCreate,
    CommentView,
    IssuePatch,
    IssueQuery,
    IssueView,
    show_comment,
    show_issue,
)
from autopilot.storage import endings, issues
from autopilot.storage.database import Conn
from autopilot.storage.issues import Issue

_KEY = re.compile(r"(?:(?P<prefix>[A-Za-z][A-Za-z0-9]{0,9})-)?(?P<number>[1-9][0-9]{0,17})")


async def list_issues(call: Call, query: IssueQuery) -> Page[IssueView]:
    async with call.database.connection() as conn:
        found = await issues.list_issues(
            conn,
            call.caller.workspace_id,
            before=query.before,
            status=query.status,
            autopilot_id=query.autopilot,
            limit=query.fetch,
        )
    return page_of(found, query, lambda issue: issue.id, show_issue)


async def get_issue(call: Call, issue: str) -> IssueView:
    async with call.database.connection() as conn:
        return show_issue(await _find(conn, call, issue))


async def update_issue(call: Call, issue: str, body: IssuePatch) -> IssueView:
    """A new state is a fact about the issue's run, and ends it where it must (S11.1)."""
    call.caller.require(Action.ISSUE_WRITE)
    expected_rev = expected_version(call, body.version)

    async def update(conn: Conn) -> tuple[Moved, Issue]:
        found = await _find(conn, call, issue)
        edit = IssueEdit(
            title=sent(body.title, None), status=sent(body.status, None), expected_rev=expected_rev
        )
        moved = await edit_issue(conn, found.workspace_id, found.id, edit)
        return moved, await _find(conn, call, str(found.id))

    moved, after = await call.database.transact(update)
    _wake(call, moved)
    return show_issue(after)


async def delete_issue(call: Call, issue: str) -> None:
    """Gone with its comments; its live tasks are cancelled and its run fails (S11.1)."""
    call.caller.require(Action.ISSUE_WRITE)

    async def remove(conn: Conn) -> Moved:
        found = await _find(conn, call, issue)
        return await finish.delete_issue(conn, found.workspace_id, found.id)

    _wake(call, await call.database.transact(remove))


async def list_comments(call: Call, issue: str, query: PageQuery) -> Page[CommentView]:
    """Newest first."""
    async with call.database.connection() as conn:
        found = await _find(conn, call, issue)
        said = await issues.list_comments(conn, found.id, before=query.before, limit=query.fetch)
    return page_of(said, query, lambda comment: comment.id, show_comment)


async def add_comment(call: Call, issue: str, body: CommentCreate) -> CommentView:
    call.caller.require(Action.ISSUE_WRITE)
    if len(body.body.encode()) > MAX_COMMENT_BYTES:
        raise InvalidValue("body", f"body: at most {MAX_COMMENT_BYTES} bytes of UTF-8.")
    comment_id = uuid7()

    async def add(conn: Conn) -> CommentView:
        found = await _find(conn, call, issue)
        links = await finish.hold_issue(conn, found.workspace_id, found.id)
        await endings.add_comment(
            conn,
            comment_id,
            links,
            found.id,
            author_type="user",
            author_id=call.caller.person,
            body=body.body,
        )
        return show_comment(await issues.find_comment(conn, comment_id))

    return await call.database.transact(add)


async def _find(conn: Conn, call: Call, issue: str) -> Issue:
    """The issue by its id, its number or its key; NoSuchIssue for what is none here."""
    found = None
    if auth.is_id(issue):
        found = await issues.find_issue(conn, call.caller.workspace_id, UUID(issue))
    elif named := _KEY.fullmatch(issue):
        prefix = named["prefix"].upper() if named["prefix"] else None
        found = await issues.find_numbered(
            conn, call.caller.workspace_id, int(named["number"]), prefix=prefix
        )
    if found is None:
        raise NoSuchIssue
    return found


def _wake(call: Call, moved: Moved) -> None:
    if moved.released:
        call.deps.bus.wake(wake_dispatch)
    for runtime_id in moved.cancelled_on:
        call.deps.bus.wake(wake_runtime(runtime_id))


_ISSUE = "/api/issues/{issue}"

ROUTES = (
    get("/api/issues", list_issues),
    get(_ISSUE, get_issue),
    patch(_ISSUE, update_issue, right=Action.ISSUE_WRITE),
    delete(_ISSUE, delete_issue, right=Action.ISSUE_WRITE),
    get(_ISSUE + "/comments", list_comments),
    post(_ISSUE + "/comments", add_comment, right=Action.ISSUE_WRITE),
)
