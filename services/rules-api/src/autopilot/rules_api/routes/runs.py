"""Runs: asked for by hand or over the API, listed, looked at (S13.1, S13.4, S13.6)."""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID

import msgspec

from autopilot.bus.subjects import wake_dispatch
from autopilot.domain.errors import InvalidValue, NotFound
from autopilot.domain.ids import AutopilotId, RunId
from autopilot.domain.permissions import Action
from autopilot.domain.states import RunStatus, Source
from autopilot.domain.webhook.body import BadBody, parse_body
from autopilot.engine.request_run import RunRequest, request_run
from autopilot.engine.rule_access import find_rule
from autopilot.kit.ids import uuid7
from autopilot.rules_api.endpoint import IDEMPOTENCY_KEY, Call, get, post
from autopilot.rules_api.idempotency import read_key
from autopilot.rules_api.paging import Page, page_of
from autopilot.rules_api.problems import Code, malformed
from autopilot.rules_api.waiting import WAITING
from autopilot.rules_api.wire.autopilots import rights_of
from autopilot.rules_api.wire.runs import (
    RunCreate,
    RunDetail,
    RunQuery,
    RunView,
    WaitQuery,
    show_detail,
    show_run,
)
from autopilot.storage import collaborators, runs

MAX_PAYLOAD_BYTES = 256 * 1024


async def trigger_autopilot(call: Call, autopilot_id: UUID, query: WaitQuery) -> RunDetail:
    """A person runs the rule now (S13.4): no fields, source `manual`, the person is who it runs for."""
    person = call.caller.person
    return await _request(
        call,
        query,
        RunRequest(
            run_id=RunId(uuid7()),
            workspace_id=call.caller.workspace_id,
            autopilot_id=AutopilotId(autopilot_id),
            source=Source.MANUAL,
            person=person,
            token_id=call.caller.token_id,
            key=_key_of(call, b""),
        ),
    )


async def create_run(call: Call, autopilot_id: UUID, body: RunCreate, query: WaitQuery) -> RunDetail:
    """A writer or a service token runs the rule, source `api` (S13.6)."""
    return await _request(
        call,
        query,
        RunRequest(
            run_id=RunId(uuid7()),
            workspace_id=call.caller.workspace_id,
            autopilot_id=AutopilotId(autopilot_id),
            source=Source.API,
            person=call.caller.user_id,
            token_id=call.caller.token_id,
            event=body.event,
            payload=_payload_of(body),
            key=_key_of(call, await call.request.read()),
        ),
    )


async def list_runs(call: Call, autopilot_id: UUID, query: RunQuery) -> Page[RunView]:
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, AutopilotId(autopilot_id))
        found = await runs.list_runs(
            conn, rule.workspace_id, rule.id, before=query.before, offset=query.skip, limit=query.fetch
        )
    return page_of(found, query, lambda run: run.id, show_run)


async def get_run(call: Call, autopilot_id: UUID, run_id: UUID) -> RunDetail:
    return await _detail(call, AutopilotId(autopilot_id), run_id)


async def _request(call: Call, query: WaitQuery, request: RunRequest) -> RunDetail:
    """Admit, wake the dispatcher, and answer as soon as the run has left pending, or as it is when the wait ends (S13.1)."""
    deadline = asyncio.get_running_loop().time() + query.wait
    run_id = await call.database.transact(lambda conn: request_run(conn, request))
    call.deps.bus.wake(wake_dispatch)
    with call.request.app[WAITING].starts.waiting(run_id) as waiter:
        shown = await _detail(call, request.autopilot_id, run_id)
        if shown.status is RunStatus.PENDING and await waiter.news(deadline):
            shown = await _detail(call, request.autopilot_id, run_id)
    return shown


async def _detail(call: Call, autopilot_id: AutopilotId, run_id: UUID) -> RunDetail:
    async with call.database.connection() as conn:
        rule = await find_rule(conn, call.caller.workspace_id, autopilot_id)
        run = await runs.find_run(conn, rule.workspace_id, rule.id, run_id)
        if run is None:
            raise NotFound("There is no such run.")
        granted = (await collaborators.list_collaborators(conn, [rule.id]))[rule.id]
        visible = rights_of(rule, granted, call.caller).can_write
        payload = await runs.find_payload(conn, run.id) if visible else None
    return show_detail(run, payload)


def _payload_of(body: RunCreate) -> bytes | None:
    """The payload's JSON text, read as strictly as a webhook's; 422 if it is too large, 400 if it is no object or array."""
    if isinstance(body.payload, msgspec.UnsetType) or bytes(body.payload) == b"null":
        return None
    text = bytes(body.payload)
    if len(text) > MAX_PAYLOAD_BYTES:
        raise InvalidValue("payload", f"payload: at most {MAX_PAYLOAD_BYTES} bytes.")
    try:
        return parse_body(text, None).json_text
    except BadBody as error:
        raise malformed(f"payload: {error.message}.", "payload") from error


def _key_of(call: Call, body: bytes) -> tuple[str, bytes] | None:
    """The idempotency key with the digest of the body; a blank key is none."""
    key = read_key(call.request)
    return (key, hashlib.sha256(body).digest()) if key is not None else None


_RUNS = "/api/autopilots/{autopilot_id}/runs"

ROUTES = (
    post(
        "/api/autopilots/{autopilot_id}/trigger",
        trigger_autopilot,
        status=200,
        right=Action.AUTOPILOT_WRITE,
        refusals=(
            Code.AUTOPILOT_PAUSED,
            Code.AUTOPILOT_ARCHIVED,
            Code.IDEMPOTENCY_KEY_REUSED,
        ),
        headers=(IDEMPOTENCY_KEY,),
    ),
    get(_RUNS, list_runs),
    post(
        _RUNS,
        create_run,
        status=200,
        right=Action.AUTOPILOT_RUN,
        refusals=(
            Code.AUTOPILOT_PAUSED,
            Code.AUTOPILOT_ARCHIVED,
            Code.IDEMPOTENCY_KEY_REUSED,
        ),
        headers=(IDEMPOTENCY_KEY,),
    ),
    get(_RUNS + "/{run_id}", get_run),
)
