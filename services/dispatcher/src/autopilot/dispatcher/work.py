"""What a run that starts makes: an issue with its first task and followers, or a bare task (S3.1, S3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from autopilot.dispatcher.plan import Texts, squad_of
from autopilot.domain.admission import Decision
from autopilot.domain.ids import IssueId, ProjectId, RuntimeId, TaskId, WorkspaceId
from autopilot.domain.prompts import issue_task_prompt
from autopilot.kit.ids import uuid7
from autopilot.storage.dispatch import NewIssue, NewSubscription, NewTask, PendingRun, RuleFacts
from autopilot.storage.queue import Claimed
from autopilot.storage.run_transitions import RunStart

ISSUE_TASK_ATTEMPTS = 3
BARE_TASK_EXPIRES_S = 2 * 3600.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run about to leave pending; `texts` is None for one that is skipped."""

    entry: Claimed
    run: PendingRun
    facts: RuleFacts
    decision: Decision
    texts: Texts | None


class Work:
    """One admitted run with the ids of what it makes; the issue's number comes later, under the last lock."""

    def __init__(self, plan: Plan, projects: Collection[ProjectId]) -> None:
        """`projects` are those that still exist: an issue of a deleted one has none (S4.7)."""
        decision, executor, rule = plan.decision, plan.facts.executor, plan.facts.rule
        assert plan.texts is not None
        assert decision.agent_id is not None
        assert decision.attribution is not None
        assert executor.runtime_id is not None
        assert rule.assignee_type is not None
        assert rule.assignee_id is not None
        self._run = plan.run
        self._facts = plan.facts
        self._attempts = plan.entry.attempts + 1
        self._text = plan.texts.text
        self._title = plan.texts.title or ""
        self._attribution = decision.attribution
        self._agent_id = decision.agent_id
        self._assignee = (rule.assignee_type, rule.assignee_id)
        self._project_id = plan.facts.project_id if plan.facts.project_id in projects else None
        self.runtime_id: RuntimeId = executor.runtime_id
        self.task_id = TaskId(uuid7())
        self.issue_id = IssueId(uuid7()) if plan.texts.title is not None else None

    @property
    def workspace_id(self) -> WorkspaceId:
        return self._run.workspace_id

    def start(self) -> RunStart:
        """The run's own transition."""
        return RunStart(
            run_id=self._run.id,
            task_id=self.task_id,
            issue_id=self.issue_id,
            agent_id=self._agent_id,
            squad_id=squad_of(self._facts),
            attribution=self._attribution,
            attempts=self._attempts,
        )

    def issue(self, number: int) -> NewIssue:
        """The issue, assigned to the rule's assignee (a squad stays one), created by who executes."""
        assert self.issue_id is not None
        assignee_type, assignee_id = self._assignee
        return NewIssue(
            id=self.issue_id,
            workspace_id=self._run.workspace_id,
            number=number,
            title=self._title,
            body=self._text,
            assignee_type=assignee_type,
            assignee_id=assignee_id,
            creator_id=self._agent_id,
            project_id=self._project_id,
            autopilot_id=self._run.autopilot_id,
            run_id=self._run.id,
        )

    def subscriptions(self, number: int) -> Iterator[NewSubscription]:
        """The rule's subscribers, each with the line in their inbox."""
        assert self.issue_id is not None
        for user_id in self._facts.subscribers:
            yield NewSubscription(
                item_id=uuid7(),
                workspace_id=self._run.workspace_id,
                issue_id=self.issue_id,
                user_id=user_id,
                autopilot_id=self._run.autopilot_id,
                run_id=self._run.id,
                title=f"{self._key(number)} {self._title}",
            )

    def issue_task(self, number: int) -> NewTask:
        """The issue's first task, which waits for its runtime for ever."""
        prompt = issue_task_prompt(issue_key=self._key(number), title=self._title, body=self._text)
        return self._task(prompt, max_attempts=ISSUE_TASK_ATTEMPTS, expires_in_s=None)

    def bare_task(self) -> NewTask:
        """The task of a run without an issue, which nobody need claim after two hours."""
        return self._task(self._text, max_attempts=1, expires_in_s=BARE_TASK_EXPIRES_S)

    def _key(self, number: int) -> str:
        return f"{self._facts.issue_prefix}-{number}"

    def _task(self, prompt: str, *, max_attempts: int, expires_in_s: float | None) -> NewTask:
        return NewTask(
            id=self.task_id,
            workspace_id=self._run.workspace_id,
            agent_id=self._agent_id,
            issue_id=self.issue_id,
            run_id=self._run.id,
            autopilot_id=self._run.autopilot_id,
            accountable_id=self._attribution.accountable,
            prompt=prompt,
            max_attempts=max_attempts,
            expires_in_s=expires_in_s,
        )
