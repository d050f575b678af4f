"""The last release's own tests on the schema of this one: a rolling upgrade has both at work (S15)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.support.postgres import ADMIN_VARIABLE, TEMPLATE_VARIABLE

ROOT = Path(__file__).parents[2]
PREVIOUS = "AUTOPILOT_PREVIOUS_RELEASE"  # a commit to take instead of the last tag
SUBSET = (
    "tests/integration/test_storage_statements.py",  # prepares every statement
    "tests/integration/test_run_transitions.py",
    "tests/integration/test_schedule_job.py",
    "tests/integration/test_runtime_commands.py",
    "tests/integration/test_finish.py",
    "tests/integration/test_ingress_answers.py",
    "tests/integration/test_api_autopilots.py",
    "tests/integration/test_events_relay.py",
)


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


def previous_release() -> str:
    """The last release before this commit; without one there is nothing to try."""
    if given := os.environ.get(PREVIOUS):
        return given
    if shutil.which("git") is None:
        pytest.skip("there is no git to find the last release with")
    found = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    if found.returncode != 0:
        pytest.skip(f"no release is tagged before this commit; {PREVIOUS} names another")
    return found.stdout.decode().strip()


def sources(tree: Path) -> list[str]:
    return [
        str(path)
        for path in (tree / "shared" / "src", *sorted(tree.glob("services/*/src")), tree / "deploy/local/src")
    ]


@pytest.mark.timeout(300)
def test_the_release_before_works_on_this_schema(
    postgres_admin_url: str, postgres_template: str, tmp_path: Path
) -> None:
    archive = git("archive", "--format=tar", previous_release())
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path, filter="data")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "PYTHONPATH": os.pathsep.join(sources(tmp_path)),  # before the packages of this release
        ADMIN_VARIABLE: postgres_admin_url,
        TEMPLATE_VARIABLE: postgres_template,
    }
    subset = [path for path in SUBSET if (tmp_path / path).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *subset]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    print(done.stdout.splitlines()[-1])
