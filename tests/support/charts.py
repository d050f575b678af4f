"""The chart as helm renders it: sets of values, programs, and objects by kind."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "autopilot"
VALUES = ROOT / "tests" / "deploy" / "values"
TOOLS = ROOT / ".tools" / "kubernetes" / "bin"

Object = dict[str, Any]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as quick where it is there


def program(name: str) -> str:
    """The pinned helm or kubectl, else the one of the PATH; a test without either is skipped."""
    pinned = TOOLS / name
    found = str(pinned) if pinned.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}: make helm-test unpacks it on Linux on x86-64")
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


def template(*arguments: str, release: str = "autopilot") -> subprocess.CompletedProcess[str]:
    return run(program("helm"), "template", release, str(CHART), "--namespace", "rules", *arguments)


@functools.cache
def rendered(values: Path | None, *arguments: str, release: str = "autopilot") -> tuple[Object, ...]:
    """What helm makes of these values; whatever it says beside that is a failure."""
    told = ["--values", str(values)] if values is not None else []
    done = template(*told, *arguments, release=release)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return tuple(found for found in yaml.load_all(done.stdout, Loader=_Loader) if found is not None)


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    found = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} {kind}s are called {name}"
    return found[0]


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every pod template, with the name of what makes pods of it."""
    for each in of_kind(objects, "Deployment", "StatefulSet", "Job"):
        yield f"{each['kind']}/{each['metadata']['name']}", each["spec"]["template"]


def component_of(found: Object) -> str:
    return str(found["metadata"]["labels"].get("app.kubernetes.io/component", ""))
