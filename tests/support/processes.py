"""Questions that tests ask about operating system processes."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; where nobody waits for orphans it stays in the table as a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
