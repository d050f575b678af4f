"""Why a webhook did or did not become a run: signature, duplicate, filter, admission, and its key (S9)."""

from __future__ import annotations

from typing import Any

from autopilot.domain.states import AutopilotStatus, DeliveryStatus, ReasonCode
from autopilot.rules_api.explain.checks import Check, note, ok, stop, when
from autopilot.rules_api.explain.look import Look
from autopilot.rules_api.explain.next_steps import next_step
from autopilot.rules_api.explain.runs import explain_run, waiting
from autopilot.rules_api.explain.switches import disabled, off
from autopilot.storage import explain, runs
from autopilot.storage.delivery_views import Delivery
from autopilot.storage.explain import MAX_LISTED, BriefDelivery

_ATTEMPTS = 5
_ACCEPTED_UNDECIDED = 202
_SHOWN = 5
_OFF = {
    ReasonCode.AUTOPILOT_PAUSED: AutopilotStatus.PAUSED,
    ReasonCode.AUTOPILOT_ARCHIVED: AutopilotStatus.ARCHIVED,
}
_KEYS = {"delivery_id": "the provider's delivery id", "idempotency_key": "its Idempotency-Key"}


async def explain_delivery(look: Look, delivery: Delivery) -> list[Check]:
    """From what was received to the run that it made, or to where it ended."""
    checks = [await _received(look, delivery)]
    if delivery.status is DeliveryStatus.REJECTED:
        checks.append(_rejected(delivery))
        return checks
    checks.append(await _key(look, delivery))
    if delivery.status is DeliveryStatus.IGNORED:
        checks.append(await _ignored(look, delivery))
        return checks
    if delivery.run_id is not None:
        run = await runs.find_run(look.conn, look.rule.workspace_id, look.rule.id, delivery.run_id)
        if run is not None:
            return checks + await explain_run(look, run)
        checks.append(note("run", "history_gone", f"Its run {delivery.run_id} is kept no longer."))
        return checks
    if delivery.status is DeliveryStatus.FAILED:
        checks.append(_failed(delivery))
        return checks
    checks.append(await _undecided(look, delivery))
    return checks


async def _received(look: Look, delivery: Delivery) -> Check:
    replay = ""
    if delivery.replayed_from is not None:
        replay = f" It is a replay of {delivery.replayed_from} by {await look.name(delivery.replayed_by)}."
    return ok(
        "delivery",
        "received",
        f"Received {when(delivery.received_at)} as {delivery.event} from {delivery.provider}, answered"
        f" {delivery.response_status}.{replay}",
        delivery_id=delivery.id,
        trigger_id=delivery.trigger_id,
        event=delivery.event,
        status=delivery.status,
        response_status=delivery.response_status,
        signature_status=delivery.signature_status,
        replayed_from=delivery.replayed_from,
    )


def _rejected(delivery: Delivery) -> Check:
    code = delivery.reason_code or ReasonCode.INVALID_SIGNATURE
    what = (
        "it carried no signature, and the trigger has a signing secret"
        if code is ReasonCode.MISSING_SIGNATURE
        else "its signature does not fit the trigger's signing secret, or came too late"
    )
    return stop(
        "signature",
        code.value,
        f"It was rejected: {what}.",
        next_step(code),
        signature_status=delivery.signature_status,
    )


async def _key(look: Look, delivery: Delivery) -> Check:
    """What it is known by again, and what came beside it: why one happening made two runs, or one."""
    others = await explain.list_deliveries_near(
        look.conn,
        delivery.id,
        trigger_id=delivery.trigger_id,
        event=delivery.event,
        key=delivery.dedupe_key,
        at=delivery.received_at,
    )
    facts = _key_facts(delivery, others)
    if delivery.replayed_from is not None:
        return ok("dedupe", "replay", "A replay is never taken for a duplicate.", **facts)
    if delivery.dedupe_key is None:
        beside = f" {_number(others)} of this event came within ten minutes." if others else ""
        return note(
            "dedupe",
            "no_key",
            "It carried neither a delivery id nor an Idempotency-Key, so that every repetition counts as a new event."
            + beside,
            **facts,
        )
    source = _KEYS.get(delivery.dedupe_source or "", "its key")
    known = f"It is known by {source}, {delivery.dedupe_key!r}"
    if delivery.attempt_count > 1:
        return note(
            "dedupe",
            "duplicate",
            f"{known}: it came {delivery.attempt_count} times, the last {when(delivery.last_attempt_at)}, and every time but"
            " the first was answered `duplicate`, with no run of its own.",
            **facts,
        )
    if [one for one in others if one.dedupe_key == delivery.dedupe_key]:
        return note(
            "dedupe",
            "slot_free",
            f"{known}. Another with the same key came within ten minutes, and one that was rejected, ignored, failed or"
            " skipped does not stand in the way of the next.",
            **facts,
        )
    if others:
        return note(
            "dedupe",
            "other_keys",
            f"{known}. {_number(others)} of this event came within ten minutes, none with this key: a sender that gives every attempt a"
            " new id, or none, makes different events of them.",
            **facts,
        )
    return ok("dedupe", "first", f"{known}, and came once.", **facts)


def _key_facts(delivery: Delivery, others: list[BriefDelivery]) -> dict[str, Any]:
    return {
        "dedupe_key": delivery.dedupe_key,
        "dedupe_source": delivery.dedupe_source,
        "attempt_count": delivery.attempt_count,
        "others": [
            {
                "id": one.id,
                "dedupe_key": one.dedupe_key,
                "status": one.status,
                "run_id": one.run_id,
                "received_at": one.received_at,
                "replayed_from": one.replayed_from,
            }
            for one in others
        ],
    }


def _number(others: list[BriefDelivery]) -> str:
    """How many came beside it, as far as they are counted."""
    if len(others) == 1:
        return "1 other delivery"
    return f"{'At least ' if len(others) == MAX_LISTED else ''}{len(others)} other deliveries"


async def _ignored(look: Look, delivery: Delivery) -> Check:
    code = delivery.reason_code
    triggers = await explain.list_triggers(
        look.conn, look.rule.workspace_id, look.rule.id, delivery.trigger_id
    )
    # What ingress could not decide was decided later, at a time that is written nowhere.
    decided = look.now if delivery.response_status == _ACCEPTED_UNDECIDED else delivery.received_at
    if code is ReasonCode.TRIGGER_DISABLED and triggers:
        return await disabled(look, triggers[0], decided)
    status = _OFF.get(code) if code is not None else None
    if status is not None:
        return await off(look, status, decided)
    if code is ReasonCode.EVENT_FILTERED:
        version = await look.version_at(decided)
        said = next(
            (one for one in version.rule.triggers if one.id == delivery.trigger_id) if version else iter(()),
            None,
        )
        filters = said.event_filters if said is not None else None
        told = f" of {await look.version(version)}" if version is not None else ""
        return stop(
            "filter",
            code.value,
            f"The event {delivery.event} fits none of the trigger's filters{told}: {_shown(filters)}.",
            next_step(code),
            event=delivery.event,
            event_filters=filters,
            rule_version=version.version if version is not None else None,
        )
    reason = code.value if code is not None else "ignored"
    return stop("delivery", reason, f"It was ignored: {reason}.", next_step(code))


def _shown(filters: list[dict[str, Any]] | None) -> str:
    """The first filters as they are typed at the command line."""
    rows = []
    for row in (filters or [])[:_SHOWN]:
        actions = [str(one) for one in row.get("actions") or []]
        more = ",..." if len(actions) > _SHOWN else ""
        rows.append(str(row.get("event")) + (f":{','.join(actions[:_SHOWN])}{more}" if actions else ""))
    beyond = len(filters or []) - _SHOWN
    return ("; ".join(rows) + (f"; and {beyond} more" if beyond > 0 else "")) or "none that can be read"


def _failed(delivery: Delivery) -> Check:
    code = delivery.reason_code
    return stop(
        "delivery",
        code.value if code is not None else "failed",
        f"Whether it is to run could not be decided: {delivery.error or 'no error was kept'}.",
        next_step(code),
        attempts=delivery.dispatch_attempts,
    )


async def _undecided(look: Look, delivery: Delivery) -> Check:
    place = await explain.find_place(look.conn, delivery.id)
    if place is None:
        return stop(
            "queue",
            "no_entry",
            "It is queued and has no place in the queue, which cannot be.",
            "Run `python -m autopilot.storage check`, and report what it says.",
            delivery_id=delivery.id,
        )
    return waiting(look, place, what="delivery", allowed=_ATTEMPTS)
