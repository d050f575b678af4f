"""Unpack promtool, which checks rules and metrics, from Debian's package of Prometheus into .tools/prometheus.

No wheel has it. The package is unpacked, not installed: nothing is started, and it needs no rights.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLACE = Path(__file__).resolve().parents[2] / ".tools" / "prometheus"


def main() -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print(
            "promtool comes from Debian's package of Prometheus: install it yourself, the tests take that of the PATH"
        )
    elif not (unpack() or (os.geteuid() == 0 and refresh_lists() and unpack())):
        print(
            "apt-get cannot download the package prometheus: install promtool yourself, the tests take that of the PATH"
        )
    return 0


def unpack() -> bool:
    """Whether the package could be had and the program is in its place."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # apt-get downloads as a user of its own
        if not succeeds(["apt-get", "download", "--quiet", "prometheus"], folder):
            return False
        [package] = Path(folder).glob("prometheus_*.deb")
        if not succeeds(["dpkg-deb", "--extract", str(package), "contents"], folder):
            return False
        shutil.copy2(Path(folder) / "contents" / "usr" / "bin" / "promtool", PLACE / "promtool")
    print("Unpacked promtool in .tools/prometheus", file=sys.stderr)
    return True


def refresh_lists() -> bool:
    return succeeds(["apt-get", "update", "--quiet"], "/")


def succeeds(command: list[str], folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
