"""`runtime run`: this machine executes the tasks of the agents that are bound to it."""

from __future__ import annotations

import socket

import click

from autopilot.cli.commands.common import finishing
from autopilot.cli.config import Settings

_NAME_LENGTH = 100


@click.group("runtime")
def runtime() -> None:
    """Execute tasks of agents on this machine."""


@runtime.command("run")
@click.option("--exec", "command", required=True, metavar="CMD", help="The shell command that does a task.")
@click.option(
    "--name",
    metavar="NAME",
    help="Whose runtime this is; each process needs its own. Default: the host's name.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=1, show_default=True, help="Tasks at the same time."
)
@click.pass_obj
def run(settings: Settings, command: str, name: str | None, concurrency: int) -> None:
    """Claim tasks and run CMD for each, until SIGTERM or Ctrl-C.

    CMD runs by `sh -c` in a process group of its own. It gets the prompt on stdin and the facts of its task in
    AUTOPILOT_TASK_ID, AUTOPILOT_RUN_ID, AUTOPILOT_ISSUE_ID, AUTOPILOT_ISSUE_KEY, AUTOPILOT_AUTOPILOT_ID,
    AUTOPILOT_WORKSPACE_ID, AUTOPILOT_AGENT, AUTOPILOT_AGENT_ID, AUTOPILOT_SOURCE, AUTOPILOT_PLANNED_AT,
    AUTOPILOT_ATTEMPT, AUTOPILOT_MAX_ATTEMPTS and AUTOPILOT_TIMEOUT_S; it never gets our tokens.
    Exit code 0 completes the task with the end of stdout as its result (64 KiB); any other fails it with the end
    of stderr. A task that is cancelled, lost or too slow gets SIGTERM, and SIGKILL 10 s later; so does every task
    when the runtime is stopped.
    """
    name = (socket.gethostname() if name is None else name).strip()[:_NAME_LENGTH]
    if not name:
        raise click.UsageError("--name must not be empty.")
    if not command.strip():
        raise click.UsageError("--exec must not be empty.")
    # Only this command needs what the worker stands on; the others start faster without it.
    from autopilot.cli.runtime.worker import Options, run_until_stopped

    options = Options(command=command, name=name, concurrency=concurrency)
    connection = settings.as_runtime()
    finishing(lambda: run_until_stopped(connection, options, settings.environ))
