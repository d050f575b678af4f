"""Whom to run Postgres as: it refuses root, so root lends it to an account without rights."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from autopilot.local.errors import LocalError

UNPRIVILEGED = "nobody"


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


def account_for_postgres() -> Account | None:
    """The account to drop to, or None when this process is not root and can run Postgres itself."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise LocalError(
            f"Postgres refuses to run as root and this machine has no account {UNPRIVILEGED!r}: "
            "run as an ordinary user."
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def can_enter(folder: Path) -> bool:
    """Whether any account may pass through `folder` and all its parents.

    Opening those folders instead would show other people's files to everyone, so nobody does that here.
    """
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.parents))


def can_execute(program: Path) -> bool:
    needed = stat.S_IROTH | stat.S_IXOTH
    return program.stat().st_mode & needed == needed and can_enter(program.parent)
