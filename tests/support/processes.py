"""Questions that tests ask about operating system processes."""

from __future__ import annotations

import asyncio

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; where nobody waits for orphans it stays in the table as a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def disappears(pid: int) -> None:
    """Wait for the end of a process that is killed: a signal is on its way for a moment."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    async with asyncio.timeout(30):
        while not has_ended(process):
            await asyncio.sleep(0.01)
