"""One request from its first byte to its answer, in the order of S9.2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from traceback import extract_tb
from typing import assert_never

import msgspec
from aiohttp import web

from autopilot.domain.errors import AutopilotError, InfrastructureError
from autopilot.domain.ids import DeliveryId, RunId
from autopilot.domain.states import DeliveryStatus
from autopilot.domain.webhook.envelope import BadBody, parse_body
from autopilot.domain.webhook.tokens import looks_like_token, token_hash
from autopilot.ingress import answers
from autopilot.ingress.answers import Answer
from autopilot.ingress.decide import Received, decide, outcome_of
from autopilot.ingress.limits import Callers, GoodTokens, SlidingMinute
from autopilot.ingress.lookup import Found, Lookups, note_undecided
from autopilot.ingress.write import Born, KeyReused, Repeat, Stale, Writes
from autopilot.kit import log, metrics, points
from autopilot.kit.http import MAX_HEADER_BYTES, Problem
from autopilot.kit.ids import uuid7
from autopilot.storage.deliveries import NewDelivery

PATH = "/api/webhooks/autopilots/"
MAX_BODY_BYTES = 256 * 1024
ANSWER_WITHIN_S = 9.0  # in all, so that it also ends the 10 s a body may take
_DECISIONS = 3

_logger = log.get_logger()
_seconds = metrics.histogram("ingress_seconds", "Webhooks answered, by outcome", ["outcome"])
_gates = metrics.counter("ingress_limited_total", "Requests refused by a limit", ["gate"])
_observers: dict[str, Callable[[float], None]] = {}


class Unsettled(InfrastructureError):
    """The rule changed faster than a delivery could be written."""


class Receiver:
    """Takes webhooks; `handle` answers every request there can be."""

    def __init__(
        self,
        lookups: Lookups,
        writes: Writes,
        *,
        callers: Callers,
        requests: SlidingMinute,
        debt: SlidingMinute,
        good: GoodTokens,
    ) -> None:
        self._lookups = lookups
        self._writes = writes
        self._callers = callers
        self._requests = requests
        self._debt = debt
        self._good = good
        # Bound once: what is not logged at this level then costs nothing on the way of every webhook.
        logger = log.get_logger().bind()
        self._debug, self._info = logger.debug, logger.info

    async def handle(self, request: web.Request) -> web.Response:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            outcome, response = await self._answer(request, began + ANSWER_WITHIN_S)
        except Problem as problem:
            outcome, response = problem.code, answers.refusal(problem)
        except BadBody as error:
            outcome = error.code
            response = answers.refusal(Problem(400, error.code, error.message, field=error.field))
        except (AutopilotError, TimeoutError) as error:
            outcome, response = _failed(error)
        except Exception as error:  # noqa: BLE001 - the seam of HTTP: every request gets an answer
            outcome, response = _broken(error)
        _observe(outcome, now() - began)
        return response

    async def _answer(self, request: web.Request, deadline: float) -> tuple[str, web.Response]:
        token = _token_of(request)
        if token is None:
            return "not_found", answers.not_found()
        caller = self._callers.name(request.remote, request.headers.getall(self._callers.header, ()))
        hashed = token_hash(token)
        self._pass_gates(caller, hashed)
        reading = False
        try:
            async with asyncio.timeout_at(deadline):
                found = await self._lookups.find(hashed) if looks_like_token(token) else None
                if found is None:
                    return self._unknown(caller, hashed)
                reading = True
                raw = await _read_body(request)
                reading = False
                return await self._settle(found, _received(request, raw), caller, hashed)
        except TimeoutError:
            if reading:
                raise answers.body_too_slow() from None
            raise

    async def _settle(
        self, found: Found, received: Received, caller: str, hashed: bytes
    ) -> tuple[str, web.Response]:
        """Decide and write; what has changed in between is looked up and decided again."""
        current: Found | None = found
        for _ in range(_DECISIONS):
            if current is None:
                return self._unknown(caller, hashed)
            new = _decide(current, received)
            fate = await self._writes.submit(new)
            if not isinstance(fate, Stale):
                self._note(new, caller, hashed)
                return self._told(current, new, fate)
            current = await self._lookups.find(hashed)
        raise Unsettled

    def _told(
        self, found: Found, new: NewDelivery, fate: Born | Repeat | KeyReused
    ) -> tuple[str, web.Response]:
        match fate:
            case KeyReused():
                raise answers.key_reused()
            case Repeat(original=original):
                delivery_id, run_id, outcome = original.id, original.run_id, "duplicate"
                repeat = Answer(
                    status=outcome,
                    delivery_id=delivery_id,
                    run_id=run_id,
                    autopilot_id=found.target.autopilot_id,
                    trigger_id=new.trigger_id,
                )
                body, status = answers.encode(repeat), 200
            case Born(written=written):
                delivery_id, run_id, outcome = new.id, new.run_id, outcome_of(new)
                if written is None:
                    body, status = new.response_body.encode(), new.response_status
                else:
                    body, status = written.response_body, written.response_status
            case _:
                assert_never(fate)
        report = self._debug if outcome in ("accepted", "duplicate") else self._info
        report(
            "webhook_answered",
            outcome=outcome,
            delivery_id=delivery_id,
            run_id=run_id,
            trigger_id=new.trigger_id,
            reason_code=new.reason_code,
        )
        return outcome, answers.answer_response(body, status)

    def _pass_gates(self, caller: str, hashed: bytes) -> None:
        wait_s = self._requests.wait_s(caller)
        if wait_s:
            _gates.labels("address").inc()
            raise answers.too_many(wait_s)
        self._requests.charge(caller)
        wait_s = self._debt.wait_s(caller)
        if wait_s and hashed not in self._good:
            _gates.labels("bad_credentials").inc()
            raise answers.too_many(wait_s)

    def _unknown(self, caller: str, hashed: bytes) -> tuple[str, web.Response]:
        self._debt.charge(caller)
        self._good.forget(hashed)
        return "unknown_token", answers.not_found()

    def _note(self, new: NewDelivery, caller: str, hashed: bytes) -> None:
        if new.status is DeliveryStatus.REJECTED:
            self._debt.charge(caller)
        else:
            self._good.note(hashed)


def _token_of(request: web.Request) -> str | None:
    """The token in the path; None for every path that is not a webhook's. Problem for what HTTP itself forbids."""
    path = request.rel_url.raw_path
    token = path[len(PATH) :]
    if not path.startswith(PATH) or not token or "/" in token:
        return None
    if request.method != "POST":
        raise answers.method_not_allowed()
    if sum([len(name) + len(value) + 4 for name, value in request.raw_headers]) > MAX_HEADER_BYTES:
        raise answers.headers_too_large()
    return token


async def _read_body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise answers.encoding_refused()
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise answers.body_too_large(MAX_BODY_BYTES)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise answers.body_too_large(MAX_BODY_BYTES) from None
    except (web.RequestPayloadError, OSError):
        raise answers.body_unreadable() from None


def _received(request: web.Request, raw: bytes) -> Received:
    return Received(
        delivery_id=DeliveryId(uuid7()),
        run_id=RunId(uuid7()),
        headers=request.headers,
        raw=raw,
        body=parse_body(raw, request.headers.get("Content-Type")),
    )


def _decide(found: Found, received: Received) -> NewDelivery:
    """Decide; an event on which that fails is kept for the dispatcher to decide on (S9.10)."""
    try:
        points.hit_sync("ingress.decide")
        return decide(found, received)
    except BadBody:
        raise
    except Exception as error:  # noqa: BLE001 - isolation of admission: what it cannot judge must not be lost
        note_undecided("decide", error)
    return decide(msgspec.structs.replace(found, decision=None), received)


def _failed(error: AutopilotError | TimeoutError) -> tuple[str, web.Response]:
    if isinstance(error, TimeoutError) or error.infrastructure:
        _logger.info("webhook_put_off", error=type(error).__name__, reason=str(error))
        return "unavailable", answers.refusal(answers.unavailable())
    return _broken(error)


def _broken(error: Exception) -> tuple[str, web.Response]:
    # Its message may quote the request (a driver quotes arguments), so only kind and place are told.
    places = [f"{frame.name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-4:]]
    _logger.error("webhook_failed", error=type(error).__name__, at=places)
    return "internal_error", answers.refusal(answers.internal_error())


def _observe(outcome: str, took_s: float) -> None:
    observe = _observers.get(outcome)
    if observe is None:
        observe = _observers[outcome] = _seconds.labels(outcome).observe
    observe(took_s)
