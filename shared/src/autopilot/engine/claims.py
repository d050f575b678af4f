"""How a runtime gets its tasks: by lease, oldest first, never more than it has hands for (S11.3, S11.7).

The numbers of the protocol are here too: whoever holds a task renews its lease well before it ends.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from autopilot.domain.errors import NotFound
from autopilot.domain.ids import RuntimeId, TaskId, WorkspaceId
from autopilot.storage import runtime_protocol
from autopilot.storage.database import Conn
from autopilot.storage.runtime_protocol import ClaimedTask

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


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim got. `misfits` are tasks that belong to nothing here; the caller refuses each (`finish.refuse_task`)."""

    tasks: list[ClaimedTask]
    misfits: list[TaskId]


async def claim_tasks(
    conn: Conn, workspace_id: WorkspaceId, runtime_id: UUID, claim_id: UUID, *, limit: int
) -> Claim:
    """Claim up to `limit` tasks in the caller's transaction, which holds nothing yet. Raises NoSuchRuntime.

    A repeated `claim_id` gets what it holds already, with the same tokens: its answer was lost on the way (HAZARDS 14: a
    claim whose answer is lost). Locks from the top: the runtime's heartbeat, issues, tasks; it waits for nobody's work.
    """
    usable = await runtime_protocol.touch(conn, workspace_id, runtime_id)
    if usable is None:
        raise NoSuchRuntime
    runtime = RuntimeId(runtime_id)
    held = await runtime_protocol.find_claim(conn, runtime, claim_id)
    if held:
        return Claim(tasks=await runtime_protocol.load_claimed(conn, held), misfits=[])
    wanted = min(limit, await runtime_protocol.find_free(conn, runtime)) if usable else 0
    if wanted < 1:
        return Claim(tasks=[], misfits=[])
    candidates = await runtime_protocol.find_candidates(conn, runtime, limit=wanted + _SPARE)
    issues = {c.issue_id for c in candidates if c.issue_id is not None and c.fits}
    open_issues = await runtime_protocol.lock_issues(conn, issues) if issues else set()
    ids = [c.id for c in candidates if c.fits and (c.issue_id is None or c.issue_id in open_issues)]
    taken = await runtime_protocol.claim_tasks(conn, ids, runtime, claim_id, lease_s=LEASE_S, limit=wanted)
    begun = {issue_id for issue_id in taken.values() if issue_id is not None}
    if begun:
        await runtime_protocol.begin_issues(conn, begun)
    return Claim(
        tasks=await runtime_protocol.load_claimed(conn, taken) if taken else [],
        misfits=[c.id for c in candidates if not c.fits],
    )
