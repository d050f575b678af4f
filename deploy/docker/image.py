"""`make image`: build the images of the four services, with buildah, podman or docker, whichever is there first.

IMAGE_PREFIX (localhost/autopilot-), TAG (the version), and PYTHON_IMAGE (the Dockerfile's) change what is made. BASE=debian makes
the base of Debian's packages first, where no registry of images can be reached; it needs root, mmdebstrap and podman.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("ingress", "scheduler", "dispatcher", "rules-api")
DEBIAN = "trixie"  # the one of the Dockerfile's base
MADE_OF = ("requirements.lock", "deploy/uv-requirements.txt", "deploy/docker", "shared/src", "services")
CERTIFICATES = Path("/etc/ssl/certs")


def main() -> int:
    tool = next((name for name in ("buildah", "podman", "docker") if shutil.which(name)), None)
    if tool is None:
        print("There is no buildah, podman or docker on this machine: install one of them.", file=sys.stderr)
        return 1
    arguments = build_arguments()
    if os.environ.get("BASE") == "debian":
        arguments["PYTHON_IMAGE"] = debian_base()
    prefix = os.environ.get("IMAGE_PREFIX", "localhost/autopilot-")
    tag = os.environ.get("TAG", arguments["VERSION"])
    for service in SERVICES:
        name = f"{prefix}{service}:{tag}"
        say(f"Building {name} with {tool}")
        build(tool, name, {**arguments, "SERVICE": service})
    return 0


def build_arguments() -> dict[str, str]:
    """What every image is told: its version, the commit that it was made of, and the base if another one is wanted."""
    with (ROOT / "shared" / "pyproject.toml").open("rb") as project:
        version = tomllib.load(project)["project"]["version"]
    told = {"VERSION": version, "REVISION": revision()}
    if base := os.environ.get("PYTHON_IMAGE"):
        told["PYTHON_IMAGE"] = base
    return told


def revision() -> str:
    """The last commit that changed what images are made of, or `unknown` outside of a clone."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%H", "--", *MADE_OF]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def build(tool: str, name: str, arguments: dict[str, str]) -> None:
    command = [tool, *runtime(tool), "build", "--quiet", "--file", "deploy/docker/Dockerfile", "--tag", name]
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    if tool != "docker":
        # HEALTHCHECK is a word of this format alone; layers are kept, since the four images share the first.
        command += ["--format", "docker", "--layers"]
        # Where packages come through a proxy with an authority of its own, this machine knows that authority.
        command += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.is_dir() else []
    run([*command, "."])


def runtime(tool: str) -> list[str]:
    """runc where it is there: it also runs on machines with both versions of control groups."""
    return ["--runtime", "runc"] if tool != "docker" and shutil.which("runc") else []


def debian_base() -> str:
    """A minimal Debian with Python as an image of its own."""
    name = f"localhost/autopilot-python:{DEBIAN}"
    say(f"Making {name} of Debian's packages")
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/base.tar"
        # The last one is in every Debian with apt: compiled packages need it.
        packages = "--include=python3,python3-venv,ca-certificates,libstdc++6"
        run(["mmdebstrap", "--quiet", "--variant=essential", packages, DEBIAN, archive])
        path = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
        run(["podman", "import", "--quiet", "--change", path, archive, name])
    return name


def run(command: list[str]) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        sys.exit(f"This step failed (see above): {' '.join(command[:5])} …")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
