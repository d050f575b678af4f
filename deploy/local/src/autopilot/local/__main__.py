"""`python -m autopilot.local up|start|stop|status|destroy|demo`: the whole system on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from autopilot.domain.errors import AutopilotError
from autopilot.local import commands
from autopilot.local.demo.play import demo

COMMANDS = {
    "up": (commands.up, "run the stack in the foreground until Ctrl-C"),
    "start": (commands.start, "run the stack in the background"),
    "stop": (commands.stop, "stop the stack"),
    "destroy": (commands.destroy, "stop the stack and remove all its data"),
    "status": (commands.status, "tell what of the stack runs"),
    "demo": (demo, "play the main job on a stack of its own, from webhook to finished task"),
}


def main() -> int:
    """Run one command; a fault is one sentence on stderr and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m autopilot.local", description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True)
    for name, (_, words) in COMMANDS.items():
        command = chosen.add_parser(name, help=words)
        command.add_argument("--folder", type=Path, default=Path(".local"), help="its data (default: .local)")
    arguments = parser.parse_args()
    try:
        return COMMANDS[arguments.command][0](arguments.folder)
    except AutopilotError as error:
        print(error.message, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
