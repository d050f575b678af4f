"""Set up a bare clone: uv in .tools, every package in .venv, with nothing but the machine's own Python.

Standard library only, and it parses on Python 3.6, so that it can say what it needs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
VENV = ROOT / ".venv"
STAMP = VENV / "setup.stamp"
UV_PIN = ROOT / "deploy" / "uv-requirements.txt"
LOCK = ROOT / "requirements.lock"
PACKAGES = (
    "shared",
    "services/ingress",
    "services/scheduler",
    "services/dispatcher",
    "services/rules-api",
    "deploy/local",
)

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python does run this line
    sys.exit(
        f"Autopilot needs Python 3.11 or newer, but {sys.executable} is {sys.version.split()[0]}: "
        "choose another with make PYTHON=/path/to/python3.11."
    )


class SetupFailed(Exception):
    """Setup cannot go on; the message says why in one sentence."""


def main() -> int:
    inputs = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == inputs:
        return 0
    try:
        uv = install_uv()
        STAMP.unlink(missing_ok=True)
        install_packages(uv)
    except SetupFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    STAMP.write_text(inputs)
    return 0


def fingerprint() -> str:
    """Changes whenever anything changes that the result depends on."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.base_prefix}\n{sys.version}\n".encode())
    for path in (Path(__file__), UV_PIN, LOCK, *(ROOT / package / "pyproject.toml" for package in PACKAGES)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def install_uv() -> Path:
    """The pinned uv: in an environment of its own, or, where Python comes without ensurepip, by the machine's pip."""
    place = TOOLS / "uv"
    uv = place / "bin" / "uv"
    pin = place / "pin.txt"
    if uv.exists() and pin.is_file() and pin.read_bytes() == UV_PIN.read_bytes():
        return uv
    say("Installing uv in .tools/uv")
    shutil.rmtree(place, ignore_errors=True)
    pip_install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip_install += ["--require-hashes", "-r", str(UV_PIN)]
    if succeeds([sys.executable, "-m", "venv", str(place)]):
        run([str(place / "bin" / "python"), *pip_install])
    elif succeeds([sys.executable, "-m", "pip", "--version"]):
        shutil.rmtree(place, ignore_errors=True)
        run([sys.executable, *pip_install, "--target", str(place)])
    else:
        raise SetupFailed(
            f"{sys.executable} has neither ensurepip nor pip: install one of them (on Debian and Ubuntu the package "
            "python3-venv) and run this again."
        )
    shutil.copyfile(UV_PIN, pin)
    return uv


def install_packages(uv: Path) -> None:
    settings = uv_settings()
    say("Installing the locked packages in .venv")
    if not is_this_python(VENV):
        run([str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV)], settings)
    install = [str(uv), "pip", "install", "--quiet", "--python", str(VENV / "bin" / "python")]
    run([*install, "--require-hashes", "-r", str(LOCK)], settings)
    editable = [part for package in PACKAGES for part in ("-e", str(ROOT / package))]
    run([*install, "--no-deps", "--no-build-isolation", *editable], settings)


def is_this_python(venv: Path) -> bool:
    try:
        told = (venv / "pyvenv.cfg").read_text()
    except FileNotFoundError:
        return False
    version = ".".join(str(part) for part in sys.version_info[:3])
    return f"version_info = {version}\n" in told and (venv / "bin" / "python").exists()


def uv_settings() -> dict[str, str]:
    """uv reads no pip configuration, so what the machine's pip is told about its index is handed on."""
    settings = {
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_HTTP_TIMEOUT": "180",
        "UV_NO_PROGRESS": "1",
        "UV_SYSTEM_CERTS": "1",  # whom the machine trusts, uv trusts too
    }
    python = getattr(sys, "_base_executable", sys.executable)  # our own environment has no pip
    told = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    for line in told.splitlines():
        name, _, value = line.partition("=")
        if name.endswith(".index-url"):
            settings["UV_DEFAULT_INDEX"] = value.strip("'\"")
        elif name.endswith(".cert"):
            settings["SSL_CERT_FILE"] = value.strip("'\"")
    if "UV_INDEX_URL" in os.environ:
        settings.pop("UV_DEFAULT_INDEX", None)
    return {**settings, **os.environ}


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    """Run a step; what it has to say about a failure is shown as it is, above our sentence."""
    if subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        shown = " ".join(command[:4])
        raise SetupFailed(f"Setup stopped because this step failed (see above): {shown} …")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
