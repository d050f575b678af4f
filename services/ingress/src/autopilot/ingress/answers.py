"""What is answered: one shape for every outcome (S9.8), problems for everything else."""

from __future__ import annotations

import msgspec

from autopilot.domain.ids import AutopilotId, DeliveryId, RunId, TriggerId
from autopilot.domain.states import ReasonCode
from autopilot.kit.http import Problem, problem_document
from autopilot.kit.ids import uuid7
from autopilot.kit.replies import Reply

RETRY_AFTER_S = 2


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a delivery: accepted, skipped, ignored, duplicate or rejected."""

    status: str
    delivery_id: DeliveryId
    run_id: RunId | None = None
    autopilot_id: AutopilotId | None = None
    trigger_id: TriggerId | None = None
    reason: str | None = None
    reason_code: ReasonCode | None = None


encode = msgspec.json.Encoder().encode

_PROBLEM = b"application/problem+json"

# Without an id of its own, so that nothing tells an unknown token from a dead one or from another path.
_NOT_FOUND = encode(
    {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "not_found",
        "detail": "There is no webhook here.",
    }
)


def not_found() -> Reply:
    return Reply(_NOT_FOUND, status=404, content_type=_PROBLEM)


def refusal(problem: Problem) -> Reply:
    """A problem document with an id of its own."""
    document = problem_document(problem, str(uuid7()))
    return Reply(document, status=problem.status, content_type=_PROBLEM, headers=problem.headers)


def method_not_allowed() -> Problem:
    return Problem(405, "method_not_allowed", "A webhook is a POST.", headers={"Allow": "POST"})


def headers_too_large() -> Problem:
    return Problem(431, "headers_too_large", "The headers are larger than 16 KiB.")


def expectation_failed() -> Problem:
    return Problem(417, "expectation_failed", "Nothing but 100-continue can be expected.")


def too_many(retry_after_s: int) -> Problem:
    return Problem(
        429, "too_many_requests", "Too many requests; try again later.", retry_after_s=retry_after_s
    )


def body_too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"The body is larger than {limit // 1024} KiB.")


def encoding_refused() -> Problem:
    return Problem(415, "content_encoding_refused", "The body must come without a content encoding.")


def body_unreadable() -> Problem:
    return Problem(400, "invalid_body", "The body could not be read to its end.", field="body")


def body_too_slow() -> Problem:
    return Problem(408, "body_timeout", "The body did not arrive in time.")


def key_reused() -> Problem:
    return Problem(
        422,
        "idempotency_key_reused",
        "This Idempotency-Key came with another body before.",
        field="Idempotency-Key",
    )


def unavailable() -> Problem:
    return Problem(503, "unavailable", "Try again in a moment.", retry_after_s=RETRY_AFTER_S)


def internal_error() -> Problem:
    return Problem(500, "internal_error", "Something went wrong here.")
