"""The dispatch transaction: claimed pending runs become issues and tasks, or end with their reason, all or nothing (S3, S10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from autopilot.dispatcher.plan import TEXT_LIMIT, decide, squad_of, write_texts
from autopilot.dispatcher.work import Plan, Work
from autopilot.domain.ids import AgentId, LeaseToken, RuleVersionId, RuntimeId, UserId
from autopilot.domain.states import ReasonCode
from autopilot.engine.overlap import lock_for_finish, release_parked
from autopilot.kit import log, points
from autopilot.kit.faults import describe_error, place_of
from autopilot.storage import dispatch as rows
from autopilot.storage import queue, run_transitions
from autopilot.storage.database import Conn
from autopilot.storage.dispatch import NewIssue, NewSubscription, NewTask, PendingRun, RuleFacts
from autopilot.storage.queue import Claimed, Retry
from autopilot.storage.run_transitions import RunEnd, RunStart

MAX_FAN_OUT = 5000

_logger = log.get_logger()


class Done(msgspec.Struct, kw_only=True):
    """What one transaction did, for the caller to act on after the commit.

    `failures` are entries whose texts could not be written, with the error to show; `left` did not fit into the
    transaction and comes next under the same lease.
    """

    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    skips: Counter[ReasonCode] = msgspec.field(default_factory=Counter)
    runtimes: set[RuntimeId] = msgspec.field(default_factory=set)
    failures: list[tuple[Claimed, str]] = msgspec.field(default_factory=list)
    left: list[Claimed] = msgspec.field(default_factory=list)


async def dispatch_entries(conn: Conn, token: LeaseToken, entries: Sequence[Claimed]) -> Done:
    """Dispatch claimed entries in the caller's transaction; those that the lease no longer holds are left alone.

    Reads and judges first, then locks from the top (projects, autopilots, entries), then writes.
    """
    done = Done()
    plans, orphans = await _plan(conn, entries, done)
    skipped = [plan for plan in plans if plan.decision.outcome == "skip"]
    projects = {plan.facts.project_id for plan in plans if plan.facts.project_id is not None}
    kept_projects = await rows.lock_projects(conn, projects) if projects else set()
    guarded = await lock_for_finish(conn, {plan.run.autopilot_id for plan in skipped})
    held = await queue.lock_claimed(conn, [entry.seq for entry in (*_entries(plans), *orphans)], token)
    plans = [plan for plan in plans if plan.entry.seq in held]
    orphans = [entry for entry in orphans if entry.seq in held]
    if orphans:
        _logger.error("queue_entry_without_pending_run", run_ids=[str(entry.run_id) for entry in orphans])
    await queue.delete_entries(conn, [entry.seq for entry in (*_entries(plans), *orphans)])
    works = [Work(plan, kept_projects) for plan in plans if plan.decision.outcome == "admit"]
    ends = [_end_of(plan) for plan in plans if plan.decision.outcome == "skip"]
    await _leave_pending(conn, _entries(plans), [work.start() for work in works], ends)
    await _insert_work(conn, works)
    await release_parked(conn, guarded)
    await points.hit("dispatcher.before_commit")
    for work in works:
        done.outcomes["running" if work.issue_id is None else "issue_created"] += 1
        done.runtimes.add(work.runtime_id)
    for end in ends:
        done.outcomes["skipped"] += 1
        done.skips[end.code] += 1
    return done


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
        entries = [entry for entry, _ in ended]
        await queue.delete_entries(conn, [entry.seq for entry in entries])
        await _leave_pending(conn, entries, [], [end for _, end in ended])
    await release_parked(conn, guarded)
    done.outcomes.update({"retry": len(retries), "failed": len(ended)})
    return done


async def _plan(conn: Conn, entries: Sequence[Claimed], done: Done) -> tuple[list[Plan], list[Claimed]]:
    """Read the facts and judge; entries whose run is not pending are answered apart."""
    runs = await rows.load_runs(conn, [entry.run_id for entry in entries])
    rules = await rows.load_rules(conn, {run.rule_version_id for run in runs.values()})
    shares = await _shares(conn, runs.values(), rules)
    plans: list[Plan] = []
    fan_out = 0
    for entry in entries:
        run = runs.get(entry.run_id)
        if run is None:
            continue
        facts = rules[run.rule_version_id]
        fan_out += len(facts.subscribers)
        if fan_out > MAX_FAN_OUT and plans:
            done.left.append(entry)
            continue
        share = (facts.executor.agent_id, run.originator_id) in shares
        decision = decide(run, facts, clicker_has_share=share)
        try:
            texts = write_texts(run, facts) if decision.outcome == "admit" else None
        except Exception as error:  # noqa: BLE001 - per-item isolation: one unreadable run must not harm its batch
            _logger.warning("run_texts_failed", run_id=str(run.id), where=place_of(error))
            done.failures.append((entry, describe_error(error)))
            continue
        plans.append(Plan(entry=entry, run=run, facts=facts, decision=decision, texts=texts))
    return plans, [entry for entry in entries if entry.run_id not in runs]


async def _shares(
    conn: Conn, runs: Collection[PendingRun], rules: Mapping[RuleVersionId, RuleFacts]
) -> set[tuple[AgentId, UserId]]:
    pairs = {
        (agent_id, run.originator_id)
        for run in runs
        if run.originator_id is not None
        and (agent_id := rules[run.rule_version_id].executor.agent_id) is not None
    }
    return await rows.load_shares(conn, pairs) if pairs else set()


async def _leave_pending(
    conn: Conn, entries: Sequence[Claimed], starts: Sequence[RunStart], ends: Sequence[RunEnd]
) -> None:
    """Move runs out of pending, with their deliveries and their triggers' last time (S10.4)."""
    if starts:
        await run_transitions.start_runs(conn, starts)
    if ends:
        await run_transitions.end_pending_runs(conn, ends)
    triggers = {entry.trigger_id for entry in entries if entry.trigger_id is not None}
    if triggers:
        await run_transitions.settle_deliveries(conn, [entry.run_id for entry in entries])
        await run_transitions.note_fired(conn, triggers)


def _end_of(plan: Plan) -> RunEnd:
    decision = plan.decision
    assert decision.code is not None
    assert decision.text is not None
    return RunEnd(
        run_id=plan.run.id,
        status="skipped",
        code=decision.code,
        text=decision.text[:TEXT_LIMIT],
        attempts=plan.entry.attempts + 1,
        agent_id=decision.agent_id,
        squad_id=squad_of(plan.facts),
        attribution=decision.attribution,
    )


async def _insert_work(conn: Conn, works: Sequence[Work]) -> None:
    """Insert issues, their subscribers, and all tasks; the numbers are the last lock that is taken."""
    wanted = Counter(work.workspace_id for work in works if work.issue_id is not None)
    following = await rows.take_issue_numbers(conn, wanted) if wanted else {}
    issues: list[NewIssue] = []
    subscriptions: list[NewSubscription] = []
    tasks: list[NewTask] = []
    for work in works:
        if work.issue_id is None:
            tasks.append(work.bare_task())
            continue
        number = following[work.workspace_id]
        following[work.workspace_id] += 1
        issues.append(work.issue(number))
        subscriptions.extend(work.subscriptions(number))
        tasks.append(work.issue_task(number))
    if issues:
        await rows.insert_issues(conn, issues)
    if subscriptions:
        await rows.insert_subscribers(conn, subscriptions)
    if tasks:
        await rows.insert_tasks(conn, tasks)


def _entries(plans: Sequence[Plan]) -> list[Claimed]:
    return [plan.entry for plan in plans]
