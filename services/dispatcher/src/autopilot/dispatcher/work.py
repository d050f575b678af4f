"""A claimed batch read and judged: a ruling for what its runs have in common, and what each of them makes (S3.1, S3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from autopilot.dispatcher.plan import rule_on, write_texts
from autopilot.domain.ids import AutopilotId, IssueId, ProjectId, RuleVersionId, RuntimeId, TaskId, TriggerId
from autopilot.domain.prompts import as_code
from autopilot.kit import log
from autopilot.kit.faults import describe_error, place_of
from autopilot.kit.ids import uuid7
from autopilot.storage.dispatch import Ruling, Work
from autopilot.storage.pending import Claim, PendingRun, RuleFacts, RunTrigger
from autopilot.storage.queue import Claimed

MAX_FAN_OUT = 5000
UNREADABLE = (
    "this dispatcher cannot read the run's rule version or trigger, which a newer one may have written"
)

_logger = log.get_logger()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Claimed entries with the facts they are judged by."""

    entries: Sequence[tuple[Claimed, PendingRun | None]]
    rules: Mapping[RuleVersionId, RuleFacts]
    triggers: Mapping[TriggerId, RunTrigger]

    @classmethod
    def of(cls, claim: Claim) -> Batch:
        return cls(entries=claim.entries, rules=claim.rules, triggers=claim.triggers)

    def only(self, entries: Sequence[tuple[Claimed, PendingRun | None]]) -> Batch:
        """Some of the entries, with the same facts."""
        return Batch(entries=entries, rules=self.rules, triggers=self.triggers)

    def halves(self) -> list[Batch]:
        middle = len(self.entries) // 2
        return [self.only(self.entries[:middle]), self.only(self.entries[middle:])]


class Job(msgspec.Struct, kw_only=True):
    """What one transaction is to write. `failures` are entries whose texts could not be written, with the error to show.

    `left` did not fit and comes next. `projects`, `ending` (rules of runs that are skipped) are to be locked first.
    """

    rulings: list[Ruling] = msgspec.field(default_factory=list)
    works: list[Work] = msgspec.field(default_factory=list)
    projects: set[ProjectId] = msgspec.field(default_factory=set)
    ending: set[AutopilotId] = msgspec.field(default_factory=set)
    runtimes: set[RuntimeId] = msgspec.field(default_factory=set)
    failures: list[tuple[Claimed, str]] = msgspec.field(default_factory=list)
    left: list[tuple[Claimed, PendingRun | None]] = msgspec.field(default_factory=list)


def plan_batch(batch: Batch) -> Job:
    """Judge each kind of run once, write each run's texts, and stop where too many people would be told at once."""
    job = Job()
    known: dict[object, int] = {}
    orphans: list[str] = []
    fan_out = 0
    for entry, run in batch.entries:
        if run is None:
            orphans.append(str(entry.run_id))
            job.works.append(Work(entry.seq, entry.run_id, entry.attempts))
            continue
        facts = batch.rules.get(run.rule_version_id)
        trigger = batch.triggers.get(entry.trigger_id) if entry.trigger_id is not None else None
        if facts is None or (trigger is None and entry.trigger_id is not None):
            _logger.error("run_facts_unreadable", run_id=str(run.id), version_id=str(run.rule_version_id))
            job.failures.append((entry, UNREADABLE))
            continue
        key = (run.rule_version_id, run.source, entry.trigger_id, run.originator_id, run.superseded)
        place = known.get(key)
        if place is None:
            place = known[key] = len(job.rulings)
            job.rulings.append(rule_on(entry, run, facts, trigger))
            _note_locks(job, job.rulings[place], facts)
        fan_out += len(facts.subscribers)
        if fan_out > MAX_FAN_OUT and job.works:
            job.left.append((entry, run))
            continue
        ruling = job.rulings[place]
        if ruling.code is not None:
            job.works.append(Work(entry.seq, run.id, entry.attempts + 1, place))
            continue
        try:
            job.works.append(_work_of(entry, run, facts, trigger, place))
        except Exception as error:  # noqa: BLE001 - per-item isolation: one unreadable run must not harm its batch
            _logger.warning("run_texts_failed", run_id=str(run.id), where=place_of(error))
            job.failures.append((entry, describe_error(error)))
    if orphans:
        _logger.error("queue_entry_without_pending_run", run_ids=orphans)
    return job


def _note_locks(job: Job, ruling: Ruling, facts: RuleFacts) -> None:
    if ruling.code is not None:
        job.ending.add(ruling.autopilot_id)
        return
    if ruling.project_id is not None:
        job.projects.add(ruling.project_id)
    if facts.executor.runtime_id is not None:
        job.runtimes.add(facts.executor.runtime_id)


def _work_of(
    entry: Claimed, run: PendingRun, facts: RuleFacts, trigger: RunTrigger | None, place: int
) -> Work:
    texts = write_texts(entry, run, facts, trigger)
    title = texts.title
    if title is None:
        return Work(entry.seq, run.id, entry.attempts + 1, place, TaskId(uuid7()), None, texts.text)
    return Work(
        entry.seq,
        run.id,
        entry.attempts + 1,
        place,
        TaskId(uuid7()),
        IssueId(uuid7()),
        texts.text,
        title,
        as_code(title),
        [uuid7() for _ in facts.subscribers],
    )
