"""Admission as a use case: facts read, decided purely, written with the queue entry; the transaction is the caller's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from autopilot.domain.admission import Actor, Decision, Overlap, Snapshot, admit
from autopilot.domain.ids import AutopilotId, RunId, TokenId, TriggerId, UserId
from autopilot.domain.states import OverlapPolicy, ReasonCode, Source
from autopilot.storage import facts
from autopilot.storage.database import Conn
from autopilot.storage.run_admission import NewRun, insert_runs

PARK_LIMIT = timedelta(hours=24)


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a run. `run_id` is made once by the caller, so that a retry after a lost answer finds itself.

    `missed`: the occurrence is recorded as skipped `schedule_missed` with how many were missed, and judged no further.
    `replaces`: how many older occurrences the run stands for; they get no run of their own (S7.10).
    `payload` is the raw JSON of an api run. `idempotency` is (key, actor, SHA-256 of the body).
    """

    run_id: RunId
    autopilot_id: AutopilotId
    actor: Actor
    trigger_id: TriggerId | None = None
    planned_at: datetime | None = None
    missed: int | None = None
    missed_text: str | None = None
    replaces: int | None = None
    event: str | None = None
    payload: bytes | None = None
    idempotency: tuple[str, UserId | TokenId, bytes] | None = None
    api_token_id: TokenId | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a firing; `inserted` is false where its plan or idempotency key already has a run."""

    firing: Firing
    decision: Decision
    inserted: bool


async def admit_firings(conn: Conn, firings: Sequence[Firing]) -> list[Outcome]:
    """Decide and write a batch inside the caller's transaction; a firing whose autopilot is gone is left out.

    Occurrences of autopilots with an overlap policy are decided under the autopilots' locks, first per autopilot first
    (S3.6): the caller must hold nothing below level 2 of the lock order, or hold those locks already.
    """
    snapshots, overlaps = await _snapshots(conn, firings)
    now = await facts.database_now(conn)
    decided: list[tuple[Firing, Decision, NewRun | None]] = []
    for firing in firings:
        snapshot = snapshots.get(_key(firing))
        if snapshot is None:
            continue
        overlap = overlaps.get(firing.autopilot_id, Overlap())
        decision = _decide(snapshot, firing, now, overlap)
        if decision.outcome in ("admit", "park"):
            overlaps[firing.autopilot_id] = Overlap(
                live=True, parked=overlap.parked or decision.outcome == "park"
            )
        decided.append((firing, decision, new_run(snapshot, firing, decision, now)))
    inserted = await insert_runs(conn, [run for _, _, run in decided if run is not None])
    return [
        Outcome(firing=f, decision=d, inserted=run is not None and run.id in inserted)
        for f, d, run in decided
    ]


def _key(firing: Firing) -> facts.Key:
    return firing.autopilot_id, firing.trigger_id


async def _snapshots(
    conn: Conn, firings: Sequence[Firing]
) -> tuple[dict[facts.Key, Snapshot], dict[AutopilotId, Overlap]]:
    keys = sorted({_key(firing) for firing in firings}, key=str)
    snapshots = await facts.load_snapshots(conn, keys)
    planned = {firing.autopilot_id for firing in firings if firing.planned_at is not None}
    guarded = {
        s.autopilot_id
        for s in snapshots.values()
        if s.autopilot_id in planned and s.overlap_policy is not OverlapPolicy.ALLOW
    }
    if not guarded:
        return snapshots, {}
    await facts.lock_autopilots(conn, list(guarded))
    # Read again: while the lock was awaited an edit may have changed what was read before it.
    snapshots = await facts.load_snapshots(conn, keys)
    return snapshots, await _overlaps(conn, snapshots.values(), guarded)


async def _overlaps(
    conn: Conn, snapshots: Iterable[Snapshot], guarded: Collection[AutopilotId]
) -> dict[AutopilotId, Overlap]:
    """What is in flight for locked autopilots. Nobody is to park behind a run whose end will not see them: one that began
    to end before the rule was given its policy holds no lock on the rule, but will find the parked one if it ends later."""
    overlaps = await facts.read_overlap(conn, list(guarded))
    parking = {
        s.autopilot_id
        for s in snapshots
        if s.overlap_policy is OverlapPolicy.QUEUE_ONE
        and (overlap := overlaps.get(s.autopilot_id)) is not None
        and overlap.live
        and not overlap.parked
    }
    if parking:
        await facts.hold_started(conn, list(parking))
        overlaps |= await facts.read_overlap(conn, list(parking))
    return overlaps


def _decide(snapshot: Snapshot, firing: Firing, now: datetime, overlap: Overlap) -> Decision:
    decision = admit(snapshot, firing.actor, now, overlap)
    if firing.missed is None or decision.outcome == "stop":
        return decision
    return msgspec.structs.replace(
        decision,
        outcome="skip",
        code=ReasonCode.SCHEDULE_MISSED,
        text=firing.missed_text or "the occurrence was missed",
    )


def new_run(snapshot: Snapshot, firing: Firing, decision: Decision, now: datetime) -> NewRun | None:
    """The run that a decision makes; None for `stop`."""
    match decision.outcome:
        case "stop":
            return None
        case "admit" | "park" | "skip":
            outcome = decision.outcome
        case _:
            assert_never(decision.outcome)
    attribution = decision.attribution
    key, actor, sha = firing.idempotency or (None, None, None)
    return NewRun(
        id=firing.run_id,
        workspace_id=snapshot.workspace_id,
        autopilot_id=snapshot.autopilot_id,
        trigger_id=firing.trigger_id,
        outcome=outcome,
        source=firing.actor.source,
        execution_mode=snapshot.execution_mode,
        rule_version_id=snapshot.rule_version_id,
        rule_version=snapshot.rule_version,
        planned_at=firing.planned_at,
        idempotency_key=key,
        idempotency_actor=actor,
        idempotency_sha=sha,
        event=firing.event,
        payload=firing.payload,
        squad_id=snapshot.squad_id,
        agent_id=decision.agent_id,
        originator_id=firing.actor.clicker if firing.actor.source is Source.MANUAL else None,
        accountable_id=attribution.accountable if attribution is not None else None,
        attribution_source=attribution.source if attribution is not None else None,
        api_token_id=firing.api_token_id,
        reason_code=decision.code,
        failure_reason=decision.text[:2000] if decision.text is not None else None,
        missed_count=firing.replaces if firing.missed is None else firing.missed,
        park_until=now + PARK_LIMIT if outcome == "park" else None,
    )
