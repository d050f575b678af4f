"""The folder of one task: its command works there, its prompt lies beside, and it goes when it is not to be kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Self

from autopilot.cli.runtime.protocol import Task
from autopilot.domain.errors import InfrastructureError


class Keep(StrEnum):
    """Which tasks leave their folders behind."""

    NEVER = "never"
    FAILED = "failed"
    ALWAYS = "always"


class NoFolder(InfrastructureError):
    """The machine could not make a folder for the task."""


class TaskFolder:
    """A new folder that only this user may enter; `work` is where the command begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"

    @classmethod
    def make(cls, parent: Path | None, task: Task) -> Self:
        """Below `parent`, which is made too, or among the system's temporary files. Raises NoFolder."""
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            made = cls(Path(tempfile.mkdtemp(prefix=f"{task.id}.{task.attempt}.", dir=parent)))
            made.work.mkdir()
        except OSError as error:
            raise NoFolder(f"The task's folder could not be made: {error.strerror}.") from error
        return made

    def write_prompt(self, prompt: str) -> Path:
        """The prompt as a file. Raises NoFolder."""
        path = self.path / "prompt.md"
        try:
            path.write_bytes(prompt.encode(errors="replace"))
        except OSError as error:
            raise NoFolder(f"The prompt could not be written: {error.strerror}.") from error
        return path

    def remove(self) -> bool:
        """Whether all of it is gone. A command may have made folders that even their owner may not enter."""
        for inner, folders, _ in os.walk(self.path, followlinks=False):
            for folder in folders:
                path = Path(inner, folder)
                if not path.is_symlink() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                    path.chmod(0o700)
        shutil.rmtree(self.path, ignore_errors=True)
        return not self.path.exists()
