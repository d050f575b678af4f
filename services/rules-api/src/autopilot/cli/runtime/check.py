"""Whether the agent program can run at all: a command of the operator's, asked again and again (S4.3)."""

from __future__ import annotations

import msgspec

from autopilot.cli.runtime.environment import machine_environment
from autopilot.cli.runtime.execution import Command
from autopilot.cli.runtime.printed import Printed
from autopilot.cli.runtime.process import NotStarted, Stop, run_command

EVERY_S = 60.0
TIME_S = 30.0
HINT = "Make the command that the runtime was given as --check end with exit code 0 on its machine."

_DETAIL_CHARACTERS = 2_000


class Usable(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine says of itself with each heartbeat."""

    usable: bool = True
    detail: str | None = None
    repair_hint: str | None = None


async def check_usable(line: str, command: Command) -> Usable:
    """Run the check with the environment that agent programs get; what it prints says what is wrong."""
    printed = Printed()
    try:
        ended = await run_command(
            line,
            prompt=None,
            environ=machine_environment(command.environ, command.allowed),
            printed=printed,
            stop=Stop(),
            timeout_s=TIME_S,
            kill_after_s=1.0,
        )
    except NotStarted as error:
        return Usable(usable=False, detail=error.message, repair_hint=HINT)
    if ended.stopped is None and ended.exit_code == 0:
        return Usable()
    headline = (
        f"The check took longer than {TIME_S:g} s."
        if ended.stopped is not None
        else f"The check ended with exit code {ended.exit_code}."
    )
    return Usable(usable=False, detail=printed.error(headline)[:_DETAIL_CHARACTERS], repair_hint=HINT)
