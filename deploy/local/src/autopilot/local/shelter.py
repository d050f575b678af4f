"""A folder of root's that other accounts can enter, standing in for one that they cannot."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from autopilot.local.errors import LocalError


def shelter_for(folder: Path) -> Path:
    """Where the stand-in for `folder` is: always the same place, below the machine's temporary folder."""
    durable = Path("/var/tmp")  # noqa: S108 - `make_shelter` checks the owner and kind of what is there
    root = durable if durable.is_dir() else Path(tempfile.gettempdir())
    return root / f"autopilot-local-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def make_shelter(place: Path) -> None:
    """Make it unless it is there. Nobody but root may have made it."""
    place.mkdir(mode=0o711, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != 0:
        raise LocalError(f"{place} belongs to somebody else: remove it, Postgres needs that place.")
    place.chmod(0o711)
