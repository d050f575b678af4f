"""Deliveries that were kept before anybody could decide on them: claimed by lease, read, settled (S9.10, S9.15)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from autopilot.domain.ids import (
    AgentId,
    AutopilotId,
    DeliveryId,
    LeaseToken,
    RuleVersionId,
    RunId,
    SquadId,
    TriggerId,
    UserId,
    WorkspaceId,
)
from autopilot.domain.states import AttributionSource, DeliveryStatus, ExecutionMode, ReasonCode
from autopilot.storage import queries
from autopilot.storage.bodies import body_of
from autopilot.storage.database import Conn

SQL = queries.load("undecided")


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One entry held by a lease. `claims` counts this claim; `attempts` counts failures that were judged."""

    seq: int
    delivery_id: DeliveryId
    autopilot_id: AutopilotId
    trigger_id: TriggerId
    claims: int
    attempts: int

    @property
    def lost_claims(self) -> int:
        """How many earlier claims ended without any outcome."""
        return self.claims - 1 - self.attempts


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """An undecided delivery with the filters of its trigger."""

    id: DeliveryId
    workspace_id: WorkspaceId
    autopilot_id: AutopilotId
    trigger_id: TriggerId
    provider: str
    event: str
    content_type: str | None
    event_filters: object
    body: bytes | None


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a delivery: `queued` with a pending run, `dispatched` with one skipped at once, else without one."""

    id: DeliveryId
    status: DeliveryStatus
    reason_code: ReasonCode | None = None
    reason: str | None = None
    error: str | None = None
    run_id: RunId | None = None
    execution_mode: ExecutionMode | None = None
    rule_version_id: RuleVersionId | None = None
    rule_version: int | None = None
    squad_id: SquadId | None = None
    agent_id: AgentId | None = None
    accountable_id: UserId | None = None
    attribution_source: AttributionSource | None = None


_COLUMNS = Settlement.__struct_fields__


async def claim(
    conn: Conn, *, limit: int, max_bytes: int, lease_s: float, token: LeaseToken
) -> list[ClaimedDelivery]:
    """Lease up to `limit` free entries, oldest first, of at most `max_bytes` together (one at least); one autocommit statement."""
    rows = await conn.fetch(SQL["claim"], limit, max_bytes, token, lease_s)
    claimed = [msgspec.convert(dict(row), ClaimedDelivery) for row in rows]
    return sorted(claimed, key=lambda entry: entry.seq)


async def hold_rules(
    conn: Conn, autopilot_ids: Collection[AutopilotId], trigger_ids: Collection[TriggerId]
) -> None:
    """Keep rules and triggers from being edited until the transaction ends; decide only in later statements."""
    await conn.execute(SQL["hold_rules"], sorted(autopilot_ids))
    await conn.execute(SQL["hold_triggers"], sorted(trigger_ids))


async def load(conn: Conn, ids: Collection[DeliveryId]) -> list[Undecided]:
    """Those of the deliveries that are still undecided."""
    rows = await conn.fetch(SQL["load"], sorted(ids))
    return [msgspec.convert(dict(row) | {"body": body_of(row)}, Undecided) for row in rows]


async def settle(conn: Conn, settlements: Sequence[Settlement]) -> set[DeliveryId]:
    """Write what was decided; the ids that were still undecided. Their own entries are the caller's to delete."""
    rows = await conn.fetch(SQL["settle"], *queries.columns(settlements, _COLUMNS))
    return {row["id"] for row in rows}


async def note_errors(conn: Conn, errors: Sequence[tuple[DeliveryId, str]]) -> None:
    """Show on the deliveries why the last attempt failed."""
    await conn.execute(SQL["note_errors"], [one[0] for one in errors], [one[1] for one in errors])
