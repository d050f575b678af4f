"""How a runtime gets its tasks: by lease, oldest first, never more than it has hands for (S11.3, S11.7).

The numbers of the protocol are here too: whoever holds a task renews its lease well before it ends.
"""

from __future__ import annotations

from functools import partial
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
    claim whose answer is lost). Claims of one runtime go one after the other: one that another overtakes begins again, and
    lets nobody pass until it is done. `turn` is that of the same request's last try.
    """
    runtime = RuntimeId(runtime_id)

    async def take(conn: Conn, mark: LeaseToken) -> Claim:
        return await runtime_protocol.claim(
            conn, workspace_id, runtime, claim_id, turn=mark, limit=limit, spare=_SPARE, lease_s=LEASE_S
        )

    async def begin(conn: Conn, *, apart: bool) -> Claim:
        mark = LeaseToken(random_token())
        if not await runtime_protocol.begin_claim(conn, workspace_id, runtime, mark, apart=apart):
            raise NoSuchRuntime
        return await take(conn, mark)

    async def claim(conn: Conn) -> Claim:
        return await (begin(conn, apart=True) if turn is None else take(conn, turn))

    found = await database.attempt(claim)
    if found.in_turn:
        return found
    return await database.transact(partial(begin, apart=False))
