"""A folder of root's that other accounts can enter, for a checkout that they cannot."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from autopilot.local.errors import LocalError


def shelter_for(folder: Path) -> Path:
    """The stand-in for `folder`, made if needed: always the same one, below the machine's temporary folder.

    Used only when root runs the stack from a folder that is closed to others. Nobody else may have made it.
    """
    durable = Path("/var/tmp")  # noqa: S108 - the owner and kind of what is there are checked below
    root = durable if durable.is_dir() else Path(tempfile.gettempdir())
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    place = root / f"autopilot-local-{name}"
    place.mkdir(mode=0o711, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != 0:
        raise LocalError(f"{place} belongs to somebody else: remove it, Postgres needs that place.")
    place.chmod(0o711)
    return place
