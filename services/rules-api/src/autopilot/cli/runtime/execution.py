"""One task from claim to report: start, run the command, tell the outcome, once, however often it takes to say it."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path

import msgspec

from autopilot.cli.errors import ApiProblem, may_pass
from autopilot.cli.runtime.environment import environment_for
from autopilot.cli.runtime.folder import Keep, NoFolder, TaskFolder
from autopilot.cli.runtime.printed import Printed
from autopilot.cli.runtime.process import KILL_AFTER_S, Ended, NotStarted, Stop, StopReason, run_command
from autopilot.cli.runtime.protocol import LeaseState, RuntimeApi, Task
from autopilot.domain.errors import AutopilotError
from autopilot.domain.states import FailureKind
from autopilot.kit import log
from autopilot.kit.backoff import Backoff
from autopilot.kit.clock import Clock

RETRY_LAST_S = 5.0
OUTPUT_EVERY_S = 2.0
PROMPT_FILE = "{prompt_file}"

_STOPS = {LeaseState.LOST: StopReason.LOST, LeaseState.CANCELLED: StopReason.CANCELLED}
_logger = log.get_logger()


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What is run for each task, and how. `timeout_s` shortens what a task allows; `kill_after_s` is for tests."""

    line: str
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    work_dir: Path | None = None
    keep: Keep = Keep.NEVER
    timeout_s: float | None = None
    kill_after_s: float = KILL_AFTER_S

    def time_for(self, task: Task) -> float:
        """How long the task's command may take."""
        return task.timeout_s if self.timeout_s is None else min(task.timeout_s, self.timeout_s)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is reported: a result, or an error with its kind."""

    result: str | None = None
    error: str = ""
    kind: FailureKind = FailureKind.AGENT


class Execution:
    """A task in hand. `stop` ends its command; a lost or cancelled one is reported to nobody."""

    def __init__(self, task: Task, *, api: RuntimeApi, command: Command, clock: Clock) -> None:
        self.task = task
        self.stop = Stop()
        self._api = api
        self._command = command
        self._clock = clock
        self._printed = Printed()

    def progress(self) -> str | None:
        """The latest line that the command printed."""
        return self._printed.latest_line()

    def renewed(self, state: LeaseState) -> None:
        """Take the server's word on the lease. A command that has ended is past stopping: its report decides."""
        if state in _STOPS:
            self.stop.request(_STOPS[state])

    async def run(self) -> None:
        """Do it to the end; what goes wrong is logged and stays with this task."""
        with log.bound(task_id=self.task.id, run_id=self.task.run_id, attempt=self.task.attempt):
            try:
                await self._run()
            except AutopilotError as error:
                _logger.warning("task_dropped", reason=error.message)
            except Exception:
                _logger.exception("task_dropped")

    async def _run(self) -> None:
        if not await self._start():
            return
        _logger.info("task_started")
        began = self._clock.monotonic()
        try:
            folder = TaskFolder.make(self._command.work_dir, self.task)
        except NoFolder as error:
            await self._report(Outcome(error=error.message, kind=FailureKind.RUNTIME_LOST))
            return
        outcome: Outcome | None = None
        try:
            outcome = await self._execute(folder, began)
            if outcome is not None:
                await self._report(outcome)
        finally:
            await self._clear(folder, failed=outcome is None or outcome.result is None)

    async def _execute(self, folder: TaskFolder, began: float) -> Outcome | None:
        telling = asyncio.create_task(self._tell_output())
        try:
            line, prompt = self._prompted(folder)
            ended = await run_command(
                line,
                prompt=prompt,
                environ=environment_for(self.task, self._command.environ, self._command.allowed),
                printed=self._printed,
                stop=self.stop,
                timeout_s=self._command.time_for(self.task),
                kill_after_s=self._command.kill_after_s,
                folder=folder.work,
            )
        except (NotStarted, NoFolder) as error:
            return Outcome(error=error.message, kind=FailureKind.RUNTIME_LOST)
        finally:
            telling.cancel()
            await asyncio.wait([telling])
        took_s = round(self._clock.monotonic() - began, 1)
        _logger.info("command_ended", exit_code=ended.exit_code, stopped=ended.stopped, took_s=took_s)
        outcome = outcome_of(ended, self._printed, self._command.time_for(self.task))
        if outcome is not None:
            await self._tell_pieces()
        return outcome

    def _prompted(self, folder: TaskFolder) -> tuple[str, str | None]:
        """The command's line and what it reads on stdin: the prompt, unless it asks for a file."""
        if PROMPT_FILE not in self._command.line:
            return self._command.line, self.task.prompt
        path = folder.write_prompt(self.task.prompt)
        return self._command.line.replace(PROMPT_FILE, shlex.quote(str(path))), None

    async def _clear(self, folder: TaskFolder, *, failed: bool) -> None:
        if self._command.keep is Keep.ALWAYS or (failed and self._command.keep is Keep.FAILED):
            _logger.info("task_folder_kept", folder=str(folder.path))
        elif not await asyncio.to_thread(folder.remove):
            _logger.warning("task_folder_left", folder=str(folder.path))

    async def _tell_output(self) -> None:
        """While the command runs its output is told piece by piece; what cannot be told now waits, within bounds."""
        while True:
            await self._clock.sleep(OUTPUT_EVERY_S)
            if not await self._tell_pieces():
                return

    async def _tell_pieces(self) -> bool:
        """Tell what waits; False when the server will not have it. Output is told at best: only the outcome must arrive.

        A refusal is the first to know that the task is no longer ours, long before the next renewal for a command that talks.
        """
        spoken = self._printed.spoken
        while (piece := spoken.next_piece()) is not None:
            try:
                await self._api.output(self.task, *piece)
            except AutopilotError as error:
                if isinstance(error, ApiProblem) and error.status == HTTPStatus.CONFLICT:
                    self.stop.request(StopReason.LOST)
                return may_pass(error)
            spoken.told(*piece)
        return True

    async def _start(self) -> bool:
        """Whether the task is ours to run. Without an answer we wait: unstarted, it costs nobody anything."""
        backoff = Backoff(last_s=RETRY_LAST_S)
        while self.stop.reason is None:
            try:
                await self._api.start(self.task)
                return True
            except AutopilotError as error:
                if not may_pass(error):
                    _logger.info("task_not_ours", reason=error.message)
                    return False
                await self._wait(backoff, error)
        return False

    async def _report(self, outcome: Outcome) -> None:
        """Say it until there is an answer. The server takes it once, and refuses it if the lease is another's."""
        try:
            await self._until_answered(lambda: self._tell(outcome))
        except ApiProblem as error:
            if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                _logger.info("report_refused", reason=error.message)
                return
            if outcome.result is None:
                raise
            # The run must not wait for its lease to end because of what the result says.
            refused = Outcome(error=f"The result was refused. {error.message}")
            await self._until_answered(lambda: self._tell(refused))
        _logger.info("task_reported", failed=outcome.result is None)

    async def _tell(self, outcome: Outcome) -> None:
        if outcome.result is not None:
            await self._api.complete(self.task, outcome.result)
        else:
            await self._api.fail(self.task, outcome.error, outcome.kind)

    async def _until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(last_s=RETRY_LAST_S)
        while True:
            try:
                return await call()
            except AutopilotError as error:
                if not may_pass(error):
                    raise
                await self._wait(backoff, error)

    async def _wait(self, backoff: Backoff, error: AutopilotError) -> None:
        backoff.note_failure()
        _logger.warning("task_waits_for_api", failures=backoff.failures, reason=error.message)
        await self._clock.sleep(backoff.next_delay_s())


def outcome_of(ended: Ended, printed: Printed, timeout_s: float) -> Outcome | None:
    """What to report for a command that ended like this; None: nothing, it is ours no more."""
    match ended.stopped:
        case StopReason.LOST | StopReason.CANCELLED:
            return None
        case StopReason.TIMEOUT:
            headline = f"The command was stopped: it ran longer than {timeout_s:g} s."
            return Outcome(error=printed.error(headline), kind=FailureKind.TIMEOUT)
        case StopReason.SHUTDOWN:
            headline = "The command was stopped: its runtime was shut down."
            return Outcome(error=printed.error(headline), kind=FailureKind.RUNTIME_LOST)
        case None:
            if ended.exit_code == 0:
                return Outcome(result=printed.result())
            return Outcome(error=printed.error(_headline(ended.exit_code)))


def _headline(exit_code: int) -> str:
    if exit_code > 0:
        return f"The command ended with exit code {exit_code}."
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"The command was ended by {name}."
