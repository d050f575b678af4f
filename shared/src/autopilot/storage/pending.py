"""Pending runs claimed by lease, in one statement with all that dispatch judges and tells of them (S10.1, S10.3, S10.6)."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import Final

import asyncpg
import msgspec

from autopilot.domain.admission import Executor
from autopilot.domain.attribution import Candidate
from autopilot.domain.ids import (
    DeliveryId,
    LeaseToken,
    ProjectId,
    RuleVersionId,
    RunId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.rules import Rule
from autopilot.domain.schedule import DEFAULT_LATENESS_S, NO_CATCH_UP_LATENESS_S
from autopilot.domain.states import AttributionPolicy, ExecutionMode, Source, TriggerKind
from autopilot.storage import queries
from autopilot.storage.bodies import unpack
from autopilot.storage.database import Conn
from autopilot.storage.queue import Claimed

SQL = queries.load("pending")
END_OF_QUEUE: Final = 2**63 - 1

_SOURCES: Final = {source.value: source for source in Source}
_MODES: Final = {mode.value: mode for mode in ExecutionMode}


class RunTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a run as it is now, deleted or not."""

    id: TriggerId
    kind: TriggerKind
    label: str | None
    timezone: str | None
    publisher: Candidate | None


class RunDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The webhook delivery behind a run, its body as it is stored: one that cannot be unpacked must not stop a whole claim."""

    id: DeliveryId
    provider: str
    event: str
    content_type: str | None
    received_at: datetime
    stored: bytes | None
    raw_size: int | None

    @property
    def body(self) -> bytes | None:
        """What was received, byte for byte; None where retention has taken it."""
        return None if self.stored is None else unpack(self.stored, self.raw_size)


class PendingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for dispatch; `event` and `payload` are those of an api call.

    `superseded`: it is a schedule's, late, and a later occurrence was not skipped (S10.6).
    """

    id: RunId
    source: Source
    execution_mode: ExecutionMode
    rule_version_id: RuleVersionId
    planned_at: datetime | None
    created_at: datetime
    originator_id: UserId | None
    event: str | None
    payload: bytes | None
    superseded: bool
    delivery: RunDelivery | None


class RuleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rule version with what is looked at anew at dispatch (S3.7); `read_at` is the database's clock."""

    rule: Rule
    workspace_id: WorkspaceId
    creator_id: UserId
    rule_owner: Candidate
    attribution_policy: AttributionPolicy
    executor: Executor
    shared_with: frozenset[UserId]
    project_id: ProjectId | None
    issue_prefix: str
    subscribers: list[UserId]
    read_at: datetime


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one claim got. An entry whose run is not pending has None beside it, which no writer leaves behind.

    Rules and triggers whose facts this program cannot read, as those of a newer one, are missing.
    `next_seq`: nothing before it is free; None where that is not known. `deferred` entries left for a later time
    within the pace of their triggers, `noisy`. `more`: there may be others, or some did not go with these.
    """

    entries: list[tuple[Claimed, PendingRun | None]]
    rules: dict[RuleVersionId, RuleFacts]
    triggers: dict[TriggerId, RunTrigger]
    next_seq: int | None
    deferred: int
    noisy: list[TriggerId]
    more: bool


async def claim(
    conn: Conn,
    *,
    token: LeaseToken,
    limit: int,
    max_bytes: int,
    lease_s: float,
    pace_per_min: int,
    start: int = 0,
    end: int = END_OF_QUEUE,
    passing: Collection[TriggerId] = (),
) -> Claim:
    """Lease up to `limit` free entries with start ≤ seq < end, oldest first, of at most `max_bytes` together (one at least).

    One autocommit statement; entries that others hold are passed over, and so are those of the triggers `passing` that
    have no time within their pace yet. An entry with three lost claims comes alone.
    """
    rows = await conn.fetch(
        SQL["claim"],
        start,
        end,
        limit,
        max_bytes,
        token,
        lease_s,
        pace_per_min,
        list(passing),
        None,
        DEFAULT_LATENESS_S,
        NO_CATCH_UP_LATENESS_S,
    )
    return _claim_of(rows)


async def give_times(
    conn: Conn, triggers: Collection[TriggerId], *, limit: int, pace_per_min: int, start: int, end: int
) -> Claim:
    """Give up to `limit` entries of these triggers, with start ≤ seq < end, their times within the pace; nothing is leased."""
    rows = await conn.fetch(
        SQL["claim"],
        start,
        end,
        limit,
        END_OF_QUEUE,
        None,
        0.0,
        pace_per_min,
        [],
        list(triggers),
        DEFAULT_LATENESS_S,
        NO_CATCH_UP_LATENESS_S,
    )
    return _claim_of(rows)


async def look_ahead(conn: Conn, start: int, entries: int) -> int:
    """Where the next so many entries of the queue end."""
    found: int | None = await conn.fetchval(SQL["look_ahead"], start, entries)
    return END_OF_QUEUE if found is None else found


def _claim_of(rows: list[asyncpg.Record]) -> Claim:
    first = rows[0]
    entries: list[tuple[Claimed, PendingRun | None]] = []
    rules: dict[RuleVersionId, RuleFacts] = {}
    triggers: dict[TriggerId, RunTrigger] = {}
    for row in rows if first["seq"] is not None else ():
        entries.append((_entry_of(row), _run_of(row) if row["pending"] else None))
        with suppress(msgspec.ValidationError):
            if (facts := row["rule_facts"]) is not None:
                rules[row["rule_version_id"]] = msgspec.convert(facts, RuleFacts)
        with suppress(msgspec.ValidationError):
            if (facts := row["trigger_facts"]) is not None:
                triggers[row["trigger_id"]] = msgspec.convert(facts, RunTrigger)
    return Claim(
        entries=entries,
        rules=rules,
        triggers=triggers,
        next_seq=first["next_seq"],
        deferred=first["deferred"],
        noisy=list(first["noisy"]),
        more=first["more"],
    )


def _entry_of(row: asyncpg.Record) -> Claimed:
    return Claimed(
        seq=row["seq"],
        run_id=row["run_id"],
        autopilot_id=row["autopilot_id"],
        trigger_id=row["trigger_id"],
        size=row["size"],
        claims=row["claims"],
        attempts=row["attempts"],
    )


def _run_of(row: asyncpg.Record) -> PendingRun:
    return PendingRun(
        id=row["run_id"],
        source=_SOURCES[row["source"]],
        execution_mode=_MODES[row["execution_mode"]],
        rule_version_id=row["rule_version_id"],
        planned_at=row["planned_at"],
        created_at=row["created_at"],
        originator_id=row["originator_id"],
        event=row["event"],
        payload=row["payload"],
        superseded=row["superseded"] is True,
        delivery=_delivery_of(row),
    )


def _delivery_of(row: asyncpg.Record) -> RunDelivery | None:
    if row["delivery_id"] is None:
        return None
    return RunDelivery(
        id=row["delivery_id"],
        provider=row["provider"],
        event=row["delivery_event"],
        content_type=row["content_type"],
        received_at=row["received_at"],
        stored=row["body"],
        raw_size=row["raw_size"],
    )
