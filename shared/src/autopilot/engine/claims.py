"""How a runtime gets its tasks: by lease, oldest first, never more than it has hands for (S11.3, S11.7).

The numbers of the protocol are here too: whoever holds a task renews its lease well before it ends.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import LeaseToken, RuntimeId, WorkspaceId
from autopilot.kit.ids import random_token
from autopilot.storage import runtime_protocol
from autopilot.storage.database import Conn, Database
from autopilot.storage.runtime_protocol import Claim

HEARTBEAT_S: Final = 15
LEASE_S: Final = 30
RENEW_S: Final = 10
POLL_S: Final = 30
# How long after its time a task may still be reported: its runtime ends it itself, and says so.
TIMEOUT_GRACE_S: Final = 30

# Candidates beyond those wanted: some may belong to an issue that somebody else works on at this moment.
_SPARE = 20
# More claims of one runtime at once than this, and some of them get nothing, as if they had come a moment earlier.
_TURNS = 10


class NoSuchRuntime(NotFound):
    """There is no such runtime here; register it again."""


async def claim_tasks(
    database: Database,
    workspace_id: WorkspaceId,
    runtime_id: UUID,
    claim_id: UUID,
    *,
    limit: int,
    turn: LeaseToken | None = None,
) -> Claim:
    """Claim up to `limit` tasks. Raises NoSuchRuntime.

    A repeated `claim_id` gets what it holds already, with the same tokens: its answer was lost on the way (HAZARDS 14: a
    claim whose answer is lost). Claims of one runtime go one after the other: one that another overtakes begins again.
    `turn` is that of the same request's last try.
    """
    runtime = RuntimeId(runtime_id)

    async def claim(conn: Conn) -> Claim:
        mark = turn or LeaseToken(random_token())
        if turn is None and not await runtime_protocol.begin_claim(conn, workspace_id, runtime, mark):
            raise NoSuchRuntime
        return await runtime_protocol.claim(
            conn, workspace_id, runtime, claim_id, turn=mark, limit=limit, spare=_SPARE, lease_s=LEASE_S
        )

    found = await database.attempt(claim)
    for _ in range(_TURNS):
        if found.in_turn:
            break
        turn = None
        found = await database.attempt(claim)
    return found
