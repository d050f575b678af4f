"""Unpack a program that no wheel has from Debian's package of it, with its libraries, into .tools/<program>.

Packages are unpacked, not installed: nothing is started, and it needs no rights. Where they cannot be had, the tests
take the program of the PATH, or are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
PACKAGES = {"promtool": "prometheus", "pgbouncer": "pgbouncer"}
OF_EVERY_SYSTEM = {"libc6"}  # it must be that of the running system


def main(program: str) -> int:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print(f"{program} comes from Debian's packages: install it yourself, the tests take that of the PATH")
    elif not (unpack(program) or (os.geteuid() == 0 and refresh_lists() and unpack(program))):
        print(
            f"apt-get cannot download {program}: install it yourself, the tests take that of the PATH",
            file=sys.stderr,
        )
    return 0


def unpack(program: str) -> bool:
    """Whether the package could be had and the program is in its place."""
    place = TOOLS / program
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # apt-get downloads as a user of its own
        package = PACKAGES[program]
        if not succeeds(["apt-get", "download", "--quiet", package], folder):
            return False
        for library in libraries(package):
            succeeds(["apt-get", "download", "--quiet", library], folder)  # the system may have it
        for file in Path(folder).glob("*.deb"):
            if not succeeds(["dpkg-deb", "--extract", str(file), "contents"], folder):
                return False
        place.mkdir(parents=True, exist_ok=True)
        contents = Path(folder) / "contents"
        for found in contents.rglob("*.so.*"):
            shutil.copy2(found, place / found.name)
        [found] = (
            path for path in contents.rglob(program) if path.is_file() and path.parent.name in ("bin", "sbin")
        )
        shutil.copy2(found, place / program)
    print(f"Unpacked {program} in .tools/{program}", file=sys.stderr)
    return True


def libraries(package: str) -> set[str]:
    """The packages of libraries that this one needs first."""
    told = subprocess.run(
        ["apt-cache", "depends", package], capture_output=True, text=True, check=False, timeout=60
    )
    return set(re.findall(r"Depends: (lib\S+)", told.stdout)) - OF_EVERY_SYSTEM


def refresh_lists() -> bool:
    return succeeds(["apt-get", "update", "--quiet"], "/")


def succeeds(command: list[str], folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
