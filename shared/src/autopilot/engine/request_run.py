"""A run that somebody asks for: a person by hand, or a writer or program over the API (S4.2, S13.4, S13.6)."""

from __future__ import annotations

import msgspec

from autopilot.domain.admission import Actor
from autopilot.domain.errors import Conflict, InvalidValue
from autopilot.domain.ids import AutopilotId, RunId, TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import Action
from autopilot.domain.states import Source
from autopilot.engine.admit import Firing, admit_firings
from autopilot.engine.rule_access import find_rule, hold_people, require
from autopilot.storage import facts, runs
from autopilot.storage.database import Conn
from autopilot.storage.errors import Contention

KEY_FIELD = "Idempotency-Key"


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `run_id` is made once by the caller, so that a repeated transaction finds itself.

    `person` is None for a service token, which needs no other right than being one of this workspace. `key` is the
    idempotency key with the SHA-256 of the request's body; `payload` is JSON text.
    """

    run_id: RunId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    source: Source
    person: UserId | None
    token_id: TokenId
    event: str | None = None
    payload: bytes | None = None
    key: tuple[str, bytes] | None = None


async def request_run(conn: Conn, request: RunRequest) -> RunId:
    """Admit in the caller's transaction; the id of the run, which an earlier request with the same key may have made.

    Raises NotFound, Forbidden, Conflict with the code of a rule that is not active, InvalidValue for a key that came
    with another body before.
    """
    rule = await find_rule(conn, request.workspace_id, request.autopilot_id)
    if request.person is not None:
        role = await hold_people(conn, request.workspace_id, request.person)
        await require(conn, rule, request.person, role, Action.AUTOPILOT_RUN)
    earlier = await _find_earlier(conn, request)
    if earlier is not None:
        return earlier
    (outcome,) = await admit_firings(conn, [await _firing(conn, request)])
    if outcome.decision.outcome == "stop":
        assert outcome.decision.code is not None
        raise Conflict(f"Not run: {outcome.decision.text}.", code=outcome.decision.code.value)
    if outcome.inserted:
        return request.run_id
    earlier = await _find_earlier(conn, request)
    if earlier is None:
        raise Contention("the run of this key was removed meanwhile")
    return earlier


async def _firing(conn: Conn, request: RunRequest) -> Firing:
    manual = request.source is Source.MANUAL
    clicker = request.person if manual else None
    share = clicker is not None and await facts.clicker_has_share(conn, request.autopilot_id, clicker)
    idempotency = None
    if request.key is not None:
        idempotency = (request.key[0], _actor(request), request.key[1])
    return Firing(
        run_id=request.run_id,
        autopilot_id=request.autopilot_id,
        actor=Actor(source=request.source, clicker=clicker, clicker_has_share=share),
        event=request.event,
        payload=request.payload,
        idempotency=idempotency,
        api_token_id=None if manual else request.token_id,
    )


async def _find_earlier(conn: Conn, request: RunRequest) -> RunId | None:
    if request.key is None:
        return None
    key, sha = request.key
    found = await runs.find_by_key(conn, request.autopilot_id, request.source, _actor(request), key)
    if found is None:
        return None
    if found[1] != sha:
        raise InvalidValue(
            KEY_FIELD, "the key was used with another body before", code="idempotency_key_reused"
        )
    return found[0]


def _actor(request: RunRequest) -> UserId | TokenId:
    return request.person if request.person is not None else request.token_id
