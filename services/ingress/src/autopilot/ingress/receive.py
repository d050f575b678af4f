"""One request from its first byte to its answer, in the order of S9.2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from traceback import extract_tb
from typing import assert_never

from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING, EXPECT

from autopilot.domain.errors import AutopilotError
from autopilot.domain.ids import DeliveryId, RunId
from autopilot.domain.states import DeliveryStatus
from autopilot.domain.webhook.envelope import BadBody, parse_body
from autopilot.domain.webhook.tokens import looks_like_token, token_hash
from autopilot.ingress import answers
from autopilot.ingress.answers import Answer
from autopilot.ingress.decide import Received, outcome_of
from autopilot.ingress.intake import Intake, Offer, Taken
from autopilot.ingress.limits import Callers, GoodTokens, SlidingMinute
from autopilot.ingress.lookup import Found, Lookups
from autopilot.ingress.write import Born, KeyReused, Repeat
from autopilot.kit import log, metrics
from autopilot.kit.deadline import Deadlines
from autopilot.kit.http import MAX_HEADER_BYTES, Problem
from autopilot.kit.ids import uuid7
from autopilot.kit.replies import Reply
from autopilot.storage.deliveries import NewDelivery

PATH = "/api/webhooks/autopilots/"
MAX_BODY_BYTES = 256 * 1024
ANSWER_WITHIN_S = 9.0  # in all, so that it also ends the 10 s a body may take

_logger = log.get_logger()
_seconds = metrics.histogram("ingress_seconds", "Webhooks answered, by outcome", ["outcome"])
_gates = metrics.counter("ingress_limited_total", "Requests refused by a limit", ["gate"])
_refused_address, _refused_debt = _gates.labels("address"), _gates.labels("bad_credentials")
_observers: dict[str, Callable[[float], None]] = {}
for _outcome in ("accepted", "unavailable", "internal_error"):  # the first refusal must be seen as a rise
    _seconds.labels(_outcome)


class Receiver:
    """Takes webhooks; `handle` answers every request there can be."""

    def __init__(
        self,
        lookups: Lookups,
        intake: Intake,
        *,
        callers: Callers,
        requests: SlidingMinute,
        debt: SlidingMinute,
        good: GoodTokens,
    ) -> None:
        self._lookups = lookups
        self._intake = intake
        self._callers = callers
        self._requests = requests
        self._debt = debt
        self._good = good
        self._now = asyncio.get_running_loop().time
        self._deadlines = Deadlines()
        # Bound once: what is not logged at this level then costs nothing on the way of every webhook.
        logger = log.get_logger().bind()
        self._debug, self._info = logger.debug, logger.info

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began = self._now()
        try:
            outcome, response = await self._answer(request, began)
        except Problem as problem:
            outcome, response = problem.code, answers.refusal(problem)
        except BadBody as error:
            outcome = error.code
            response = answers.refusal(Problem(400, error.code, error.message, field=error.field))
        except (AutopilotError, TimeoutError) as error:
            outcome, response = _failed(error)
        except Exception as error:  # noqa: BLE001 - the seam of HTTP: every request gets an answer
            outcome, response = _broken(error)
        _observe(outcome, self._now() - began)
        return response

    async def _answer(self, request: web.BaseRequest, began: float) -> tuple[str, web.StreamResponse]:
        token = _token_of(request)
        if token is None:
            return "not_found", answers.not_found()
        caller = self._callers.name(request.remote, request.headers.getall(self._callers.header, ()))
        hashed = token_hash(token)
        self._pass_gates(caller, hashed)
        reading = False
        try:
            with self._deadlines.until(began + ANSWER_WITHIN_S):
                found = None
                if hashed not in self._good:  # a token that was good is looked up together with its batch
                    found = await self._lookups.find(hashed) if looks_like_token(token) else None
                    if found is None:
                        return self._unknown(caller, hashed)
                reading = True
                received = await self._receive(request, hashed, found)
                reading = False
                taken = None
                if received is not None:
                    offer = Offer(token_hash=hashed, received=received, found=found)
                    taken = await self._intake.take(offer)
        except TimeoutError:
            if reading:
                raise answers.body_too_slow() from None
            raise
        if taken is None:
            return self._unknown(caller, hashed)
        self._note(taken.new, caller, hashed)
        return self._told(taken)

    async def _receive(self, request: web.BaseRequest, hashed: bytes, found: Found | None) -> Received | None:
        """What is wrong with a request is told only to a token that still leads somewhere; None for any other."""
        try:
            return _received(request, await _read_body(request))
        except (Problem, BadBody):
            if found is None and await self._lookups.find(hashed) is None:
                return None
            raise

    def _told(self, taken: Taken) -> tuple[str, web.StreamResponse]:
        new = taken.new
        outcome: str
        match taken.fate:
            case Born(written=written):
                delivery_id, run_id, outcome = new.id, new.run_id, outcome_of(new)
                if written is None:
                    body, status = new.response_body, new.response_status
                else:
                    body, status = written.response_body, written.response_status
            case KeyReused():
                raise answers.key_reused()
            case Repeat(original=original):
                delivery_id, run_id, outcome = original.id, original.run_id, "duplicate"
                repeat = Answer(
                    status=outcome,
                    delivery_id=delivery_id,
                    run_id=run_id,
                    autopilot_id=taken.found.target.autopilot_id,
                    trigger_id=new.trigger_id,
                )
                body, status = answers.encode(repeat), 200
            case _:
                assert_never(taken.fate)
        report = self._debug if outcome in ("accepted", "duplicate") else self._info
        report(
            "webhook_answered",
            outcome=outcome,
            delivery_id=delivery_id,
            run_id=run_id,
            trigger_id=new.trigger_id,
            reason_code=new.reason_code,
        )
        return outcome, Reply(body, status=status)

    def _pass_gates(self, caller: str, hashed: bytes) -> None:
        wait_s = self._requests.wait_s(caller)
        if wait_s:
            _refused_address.inc()
            raise answers.too_many(wait_s)
        self._requests.charge(caller)
        wait_s = self._debt.wait_s(caller)
        if wait_s and hashed not in self._good:
            _refused_debt.inc()
            raise answers.too_many(wait_s)

    def _unknown(self, caller: str, hashed: bytes) -> tuple[str, web.StreamResponse]:
        self._debt.charge(caller)
        self._good.forget(hashed)
        return "unknown_token", answers.not_found()

    def _note(self, new: NewDelivery, caller: str, hashed: bytes) -> None:
        if new.status is DeliveryStatus.REJECTED:
            self._debt.charge(caller)
        else:
            self._good.note(hashed)


def _token_of(request: web.BaseRequest) -> str | None:
    """The token in the path; None for every path that is not a webhook's. Problem for what HTTP itself forbids."""
    expected = request.headers.get(EXPECT)
    if expected is not None and expected.lower() != "100-continue":
        raise answers.expectation_failed()
    path = request.rel_url.raw_path
    token = path[len(PATH) :]
    if not path.startswith(PATH) or not token or "/" in token:
        return None
    if request.method != "POST":
        raise answers.method_not_allowed()
    headers = request.raw_headers
    if sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > MAX_HEADER_BYTES:
        raise answers.headers_too_large()
    return token


async def _read_body(request: web.BaseRequest) -> bytes:
    headers, content = request.headers, request.content
    if CONTENT_ENCODING in headers:
        encodings = ",".join(headers.getall(CONTENT_ENCODING))
        if any(encoding.strip().lower() not in ("", "identity") for encoding in encodings.split(",")):
            raise answers.encoding_refused()
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise answers.body_too_large(MAX_BODY_BYTES)
    try:
        if EXPECT in headers:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the answer itself has not begun
        # What has come with its headers need not be gathered.
        raw = content.read_nowait() if content.is_eof() else await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise answers.body_too_large(MAX_BODY_BYTES) from None
    except (web.RequestPayloadError, OSError):
        raise answers.body_unreadable() from None
    if len(raw) > MAX_BODY_BYTES:
        raise answers.body_too_large(MAX_BODY_BYTES)
    return raw


def _received(request: web.BaseRequest, raw: bytes) -> Received:
    return Received(
        delivery_id=DeliveryId(uuid7()),
        run_id=RunId(uuid7()),
        headers=request.headers,
        raw=raw,
        body=parse_body(raw, request.headers.get("Content-Type")),
    )


def _failed(error: AutopilotError | TimeoutError) -> tuple[str, web.StreamResponse]:
    if isinstance(error, TimeoutError) or error.infrastructure:
        _logger.info("webhook_put_off", error=type(error).__name__, reason=str(error))
        return "unavailable", answers.refusal(answers.unavailable())
    return _broken(error)


def _broken(error: Exception) -> tuple[str, web.StreamResponse]:
    # Its message may quote the request (a driver quotes arguments), so only kind and place are told.
    places = [f"{frame.name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-4:]]
    _logger.error("webhook_failed", error=type(error).__name__, at=places)
    return "internal_error", answers.refusal(answers.internal_error())


def _observe(outcome: str, took_s: float) -> None:
    observe = _observers.get(outcome)
    if observe is None:
        observe = _observers[outcome] = _seconds.labels(outcome).observe
    observe(took_s)
