"""`python -m autopilot.storage migrate|status|check`: the operator's view of the database."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from autopilot.domain.errors import AutopilotError
from autopilot.storage import invariants, migrate


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m autopilot.storage", description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("AUTOPILOT_DATABASE_URL"),
        help="default: AUTOPILOT_DATABASE_URL",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "migrate", help="bring the schema to the newest revision (a direct URL, not a pooler's)"
    )
    commands.add_parser("status", help="compare the schema with this program; exit 1 when it is behind")
    commands.add_parser("check", help="run the invariants; exit 1 when a row breaks one")
    arguments = parser.parse_args()
    if not arguments.database_url:
        parser.error("set AUTOPILOT_DATABASE_URL or give --database-url")
    return arguments


async def _check(url: str) -> int:
    broken = await invariants.check(url)
    for finding in broken:
        print(finding)
    print(f"{len(broken)} findings" if broken else "all invariants hold")
    return 1 if any(finding.fatal for finding in broken) else 0


def main() -> int:
    """Run one command; faults are one sentence on stderr and exit status 1."""
    arguments = _arguments()
    try:
        if arguments.command == "check":
            return asyncio.run(_check(arguments.database_url))
        act = migrate.upgrade if arguments.command == "migrate" else migrate.status
        found = asyncio.run(act(arguments.database_url))
    except AutopilotError as error:
        print(f"autopilot: {error.message}", file=sys.stderr)
        return 1
    print(f"schema {found.current or 'empty'}, this program wants {found.head}")
    return 0 if found.ready else 1


if __name__ == "__main__":
    sys.exit(main())
