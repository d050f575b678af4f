"""`runtime run`: this machine executes the tasks of the agents that are bound to it."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterable
from pathlib import Path

import click

from autopilot.cli.commands import workers
from autopilot.cli.commands.common import finishing
from autopilot.cli.config import Settings

_NAME_LENGTH = 100
_CAPABILITY = re.compile(r"([A-Za-z0-9_.-]{1,100})=(.{0,200})")


@click.group("runtime")
def runtime() -> None:
    """Machines that execute: this one, and the others."""


runtime.add_command(workers.list_runtimes)
runtime.add_command(workers.get_runtime)
runtime.add_command(workers.delete_runtime)


@runtime.command("run")
@click.option(
    "--exec",
    "command",
    required=True,
    metavar="CMD",
    help="The shell command that does a task. {prompt_file} in it becomes the path of a file with the prompt.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Whose runtime this is; each process needs its own. Default: the host's name.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=1, show_default=True, help="Tasks at the same time."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="End a command after this time, if its task allows it more.",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where each task gets a folder of its own to work in. Default: the system's temporary files.",
)
@click.option(
    "--keep",
    type=click.Choice(["never", "failed", "always"]),
    default="never",
    show_default=True,
    help="Which tasks leave their folder behind.",
)
@click.option(
    "--env",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Pass this variable on to CMD; NAME* passes on all that begin so. Repeatable.",
)
@click.option(
    "--check",
    metavar="CMD",
    help="A command that ends with 0 while the agent program can run. Asked each minute; until then no task is taken.",
)
@click.option(
    "--capability",
    "capabilities",
    multiple=True,
    metavar="KEY=VALUE",
    help="Something about this machine that people see beside its name. Repeatable.",
)
@click.pass_obj
def run(
    settings: Settings,
    command: str,
    name: str | None,
    concurrency: int,
    timeout_s: float | None,
    work_dir: Path | None,
    keep: str,
    allowed: tuple[str, ...],
    check: str | None,
    capabilities: tuple[str, ...],
) -> None:
    """Claim tasks and run CMD for each, until SIGTERM or Ctrl-C.

    CMD runs by `sh -c` in a process group and in a folder of its own. It gets the prompt on stdin and the facts of its
    task in AUTOPILOT_TASK_ID, AUTOPILOT_RUN_ID, AUTOPILOT_ISSUE_ID, AUTOPILOT_ISSUE_KEY, AUTOPILOT_AUTOPILOT_ID,
    AUTOPILOT_WORKSPACE_ID, AUTOPILOT_AGENT, AUTOPILOT_AGENT_ID, AUTOPILOT_SOURCE, AUTOPILOT_PLANNED_AT,
    AUTOPILOT_ATTEMPT, AUTOPILOT_MAX_ATTEMPTS and AUTOPILOT_TIMEOUT_S, and where the runtime was started in
    AUTOPILOT_RUNTIME_DIR. Of the machine's own variables it gets PATH, HOME, the language and the like, and those that
    --env names; never our tokens.
    Exit code 0 completes the task with the end of stdout as its result (64 KiB); any other fails it with the end
    of stderr. A task that is cancelled, lost or too slow gets SIGTERM, and SIGKILL 10 s later; so does every task
    when the runtime is stopped.
    """
    name = (socket.gethostname() if name is None else name).strip()[:_NAME_LENGTH]
    for option, text in (("--name", name), ("--exec", command), ("--check", check)):
        if text is not None and not text.strip():
            raise click.UsageError(f"{option} must not be empty.")
    # Only this command needs what the worker stands on; the others start faster without it.
    from autopilot.cli.runtime.execution import Command
    from autopilot.cli.runtime.folder import Keep
    from autopilot.cli.runtime.worker import Options, run_until_stopped

    options = Options(
        command=Command(
            line=command,
            environ=settings.environ,
            allowed=allowed,
            work_dir=work_dir.absolute() if work_dir is not None else None,
            keep=Keep(keep),
            timeout_s=timeout_s,
        ),
        name=name,
        concurrency=concurrency,
        capabilities=_capabilities(capabilities),
        check=check,
    )
    connection = settings.as_runtime()
    finishing(lambda: run_until_stopped(connection, options))


def _capabilities(given: Iterable[str]) -> dict[str, str]:
    """What the machine is, and what its operator says of it; UsageError for what is not KEY=VALUE."""
    told = {"os": platform.system().lower(), "arch": platform.machine()}
    for text in given:
        found = _CAPABILITY.fullmatch(text)
        if found is None:
            raise click.UsageError(f"--capability must be KEY=VALUE, not {text!r}.")
        told[found[1]] = found[2]
    return told
