"""The dispatch transaction: a planned batch leaves pending with everything that follows, all or nothing (S3, S10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from autopilot.dispatcher.work import Job
from autopilot.domain.ids import LeaseToken
from autopilot.domain.states import ReasonCode
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.kit import points
from autopilot.storage import dispatch as storage
from autopilot.storage import queue, run_transitions
from autopilot.storage.database import Conn, Database
from autopilot.storage.dispatch import Ruling
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd

ISSUE_TASK_ATTEMPTS = 3
BARE_TASK_EXPIRES_S = 2 * 3600.0
TRIES = 2


class Done(msgspec.Struct, kw_only=True):
    """What one transaction did, for the caller to count after the commit."""

    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    skips: Counter[ReasonCode] = msgspec.field(default_factory=Counter)


async def dispatch_job(database: Database, token: LeaseToken, job: Job) -> Done:
    """Write a planned batch; runs whose lease was lost meanwhile are left alone.

    It is one statement, with a transaction around it only where something must be locked before it.
    """
    if not job.works:
        return Done()
    if job.projects or job.ending:
        return await database.transact(lambda conn: _locked(conn, token, job), tries=TRIES)

    async def write(conn: Conn) -> Done:
        await points.hit("dispatcher.before_commit")
        return await _write(conn, token, job, job.rulings)

    return await database.attempt(write, tries=TRIES)


async def settle_failures(
    conn: Conn, token: LeaseToken, failed: Sequence[tuple[Claimed, Retry | RunEnd]]
) -> Done:
    """Defer failed entries to their next attempt, or end their runs, in the caller's transaction."""
    done = Done()
    finals = {entry.autopilot_id for entry, outcome in failed if isinstance(outcome, RunEnd)}
    guarded = await lock_for_finish(conn, finals)
    held = await queue.lock_claimed(conn, [entry.seq for entry, _ in failed], token)
    retries = [o for e, o in failed if e.seq in held and isinstance(o, Retry)]
    ended = [(e, o) for e, o in failed if e.seq in held and isinstance(o, RunEnd)]
    if retries:
        await queue.defer_retries(conn, retries)
    if ended:
        await queue.delete_entries(conn, [entry.seq for entry, _ in ended])
        await run_transitions.end_pending_runs(conn, [end for _, end in ended])
        triggers = {entry.trigger_id for entry, _ in ended if entry.trigger_id is not None}
        if triggers:
            await run_transitions.settle_deliveries(conn, [entry.run_id for entry, _ in ended])
            await run_transitions.note_fired(conn, triggers)
    await release_parked(conn, guarded)
    done.outcomes.update({"retry": len(retries), "failed": len(ended)})
    return done


async def _locked(conn: Conn, token: LeaseToken, job: Job) -> Done:
    """Locks from the top (projects, rules of runs that end), then the rest; waiters are released behind it."""
    projects = await storage.lock_projects(conn, job.projects) if job.projects else set()
    guarded = await lock_for_finish(conn, job.ending)
    # An issue of a deleted project has none (S4.7).
    rulings = [
        ruling if ruling.project_id in projects else msgspec.structs.replace(ruling, project_id=None)
        for ruling in job.rulings
    ]
    done = await _write(conn, token, job, rulings)
    await release_parked(conn, guarded)
    await points.hit("dispatcher.before_commit")
    return done


async def _write(conn: Conn, token: LeaseToken, job: Job, rulings: Sequence[Ruling]) -> Done:
    done = Done()
    for outcome in await storage.dispatch(
        conn,
        token,
        rulings,
        job.works,
        issue_task_attempts=ISSUE_TASK_ATTEMPTS,
        bare_task_expires_s=BARE_TASK_EXPIRES_S,
    ):
        done.outcomes[outcome.status.value] += outcome.runs
        if outcome.code is not None:
            done.skips[outcome.code] += outcome.runs
    return done
