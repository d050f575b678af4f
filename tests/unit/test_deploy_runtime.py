"""The examples in deploy/runtime say what the command really takes (S11.4)."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest

from autopilot.cli.commands.runtime import run
from autopilot.cli.runtime.worker import GRACE_S

FOLDER = Path(__file__).parents[2] / "deploy" / "runtime"


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / "autopilot-runtime.service").read_text())
    return parser["Service"]


def examples() -> dict[str, list[str]]:
    """The arguments behind `runtime run` of each example."""
    readme = (FOLDER / "README.md").read_text().replace("\\\n", " ")
    shown = re.search(r"--env-file runtime.env autopilot-runtime (.*)", readme)
    command = re.search(r"^CMD (\[.*\])$", (FOLDER / "Containerfile").read_text(), re.MULTILINE)
    assert shown is not None
    assert command is not None
    return {
        "service": shlex.split(unit()["ExecStart"])[3:],
        "container": shlex.split(shown[1]),
        "Containerfile": [word.strip('" ') for word in command[1].strip("[]").split(",")],
    }


@pytest.mark.parametrize("name", ["service", "container", "Containerfile"])
def test_every_example_is_a_command_line_that_the_runtime_takes(name: str) -> None:
    context = run.make_context("run", examples()[name])
    assert context.params["command"]
    assert context.params["work_dir"] is not None


def test_what_an_example_passes_on_is_set_and_no_token_is_among_it() -> None:
    lines = (FOLDER / "runtime.env.example").read_text().splitlines()
    variables = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert variables >= {"AUTOPILOT_API_URL", "AUTOPILOT_RUNTIME_TOKEN"}
    for name in ("service", "container"):
        passed = set(run.make_context("run", examples()[name]).params["allowed"])
        assert passed <= variables - {"AUTOPILOT_RUNTIME_TOKEN"}


def test_a_stop_gives_the_runtime_the_time_that_it_takes() -> None:
    """S11.7, K81: a SIGKILL in between would leave tasks to their leases."""
    assert float(unit()["TimeoutStopSec"]) > GRACE_S
    assert unit()["KillMode"] == "mixed"
    stop = re.search(r"--stop-timeout (\d+)", (FOLDER / "README.md").read_text())
    assert stop is not None
    assert float(stop[1]) > GRACE_S
