"""Rules that fail again and again are paused, and people are told of failures, skips and recoveries, each once (S7.14)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from autopilot.domain.errors import AutopilotError, InfrastructureError
from autopilot.domain.health import Finding, Limits, judge
from autopilot.domain.ids import AutopilotId, RunId, WorkspaceId
from autopilot.domain.notices import NoticeKind, notice_title
from autopilot.domain.states import PauseReason
from autopilot.engine.notices import Notice, tell_people
from autopilot.engine.publish import hold_rules
from autopilot.engine.system_edits import Evidence, system_pause
from autopilot.kit import log, metrics
from autopilot.kit.faults import place_of
from autopilot.scheduler.spec import JobRun, JobSpec
from autopilot.storage import run_health
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention
from autopilot.storage.run_health import RuleHealth

_logger = log.get_logger()
_found = metrics.counter("rule_notices_total", "What the failure monitor found of rules, by kind", ["kind"])

JOB_NAME: Final = "failure_monitor"
ASSESS_BATCH: Final = 500
ACT_BATCH: Final = 20
WINDOW: Final = timedelta(hours=1)
SETTLE: Final = timedelta(minutes=5)
LOOK_BACK: Final = timedelta(days=7)


class RulesNotReviewed(AutopilotError):
    """Some rules could not be reviewed."""


class _Tally(msgspec.Struct, kw_only=True):
    reviewed: int = 0
    autopilot_paused: int = 0
    autopilot_failing: int = 0
    autopilot_skipping: int = 0
    autopilot_recovered: int = 0
    errors: int = 0

    def count(self, kinds: Sequence[NoticeKind]) -> None:
        for kind in kinds:
            setattr(self, kind.value, getattr(self, kind.value) + 1)
            _found.labels(kind).inc()


def failures_job(database: Database, limits: Limits) -> JobSpec:
    """The job, hourly: it looks at the rules of which a run ended since its last success."""

    async def handle(_run: JobRun) -> dict[str, Any]:
        return await review_rules(database, limits)

    return JobSpec(
        name=JOB_NAME,
        handler=handle,
        cadence=timedelta(hours=1),
        run_timeout=timedelta(minutes=10),
        stale_timeout=timedelta(minutes=11),
        stale_reentry=True,
        max_attempts=3,
    )


async def review_rules(database: Database, limits: Limits) -> dict[str, Any]:
    """Review what is due; how many rules were looked at and what was found.

    Raises RulesNotReviewed when the rest is done: the plan has then failed, and the next one looks back as far.
    """
    tally = _Tally()
    for workspace_id, ids in (await _rules_with_ends(database)).items():
        for batch in _chunks(ids, ASSESS_BATCH):
            async with database.connection() as conn:
                found = await run_health.assess(conn, batch, limits)
            due = [rule.autopilot_id for rule in found if judge(rule.health, limits)]
            for group in _chunks(due, ACT_BATCH):
                await _act_apart(database, workspace_id, group, limits, tally)
            tally.reviewed += len(found)
    if tally.errors:
        raise RulesNotReviewed(f"{tally.errors} of {tally.reviewed} rules could not be reviewed")
    return msgspec.structs.asdict(tally)


async def _rules_with_ends(database: Database) -> dict[WorkspaceId, list[AutopilotId]]:
    """The rules to look at, found an hour of history at a time, with some overlap for what was committed late."""
    async with database.connection() as conn:
        now, began = await run_health.read_horizon(conn, JOB_NAME)
    since = max(began - SETTLE, now - LOOK_BACK) if began is not None else now - LOOK_BACK
    found: defaultdict[WorkspaceId, set[AutopilotId]] = defaultdict(set)
    for begins, ends in _windows(since, now):
        async with database.connection() as conn:
            for workspace_id, autopilot_id in await run_health.list_rules_with_ends(conn, begins, ends):
                found[workspace_id].add(autopilot_id)
    return {workspace_id: sorted(ids) for workspace_id, ids in sorted(found.items())}


def _windows(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        yield since, min(since + WINDOW, until)
        since += WINDOW


def _chunks(ids: Sequence[AutopilotId], size: int) -> Iterator[Sequence[AutopilotId]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


async def _act_apart(
    database: Database, workspace_id: WorkspaceId, ids: Sequence[AutopilotId], limits: Limits, tally: _Tally
) -> None:
    """One transaction for all of them, or one for each where that fails: a rule harms no other."""
    try:
        kinds = await database.transact(partial(act_on, workspace_id=workspace_id, ids=ids, limits=limits))
    except Exception as error:
        if isinstance(error, InfrastructureError) and not isinstance(error, Contention):
            raise
        if len(ids) > 1:
            for autopilot_id in ids:
                await _act_apart(database, workspace_id, [autopilot_id], limits, tally)
            return
        _logger.warning("rule_review_failed", autopilot_id=str(ids[0]), where=place_of(error))
        tally.errors += 1
        return
    tally.count(kinds)


async def act_on(
    conn: Conn, workspace_id: WorkspaceId, ids: Sequence[AutopilotId], limits: Limits
) -> list[NoticeKind]:
    """Pause and tell, in one transaction; what was done.

    The rules are locked before they are judged (again): another monitor's notices are then there to be seen.
    """
    await hold_rules(conn, workspace_id, ids)
    rules = await run_health.assess(conn, ids, limits)
    found = [(rule, finding) for rule in rules for finding in judge(rule.health, limits)]
    pauses = {
        rule.autopilot_id: Evidence(cause=finding.text, run_id=rule.failed_run)
        for rule, finding in found
        if finding.kind is NoticeKind.AUTOPILOT_PAUSED
    }
    await system_pause(conn, workspace_id, sorted(pauses), PauseReason.TOO_MANY_FAILURES, pauses)
    others = [_notice(rule, finding) for rule, finding in found if rule.autopilot_id not in pauses]
    await tell_people(conn, workspace_id, others)
    return [finding.kind for _, finding in found]


def _notice(rule: RuleHealth, finding: Finding) -> Notice:
    return Notice(
        autopilot_id=rule.autopilot_id,
        creator_id=rule.creator_id,
        kind=finding.kind,
        title=notice_title(rule.title, finding.text),
        run_id=_shown_by(rule, finding.kind),
    )


def _shown_by(rule: RuleHealth, kind: NoticeKind) -> RunId | None:
    if kind is NoticeKind.AUTOPILOT_SKIPPING:
        return rule.skipped_run
    return rule.completed_run if kind is NoticeKind.AUTOPILOT_RECOVERED else rule.failed_run
